"""What a run owns on this machine: processes and shared-memory segments, and how they are freed.

An arm is its own session, so what it spawned is found by session id even after the arm died.
Workers of Ray are children of the raylet, not of the arm. Shared-memory segments are owned when
a process of ours had them mapped: they are noted while it lives, because a killed process can no
longer be asked. (vLLM's message queues, its CPU all-reduce and Ray's mutable objects leave their
segments behind when a worker is killed, and killing its actors is how RayExecutorV2 shuts down.)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_SHM = "/dev/shm/"
_DELETED = " (deleted)"


def mapped_segments(pid: int) -> set[str]:
    """Return the paths under /dev/shm that process *pid* has mapped; empty when it is gone."""
    found: set[str] = set()
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as maps:
            for line in maps:
                at = line.find(_SHM)
                if at >= 0:
                    path = line[at:].rstrip("\n")
                    if not path.endswith(_DELETED):
                        found.add(path)
    except OSError:
        return set()
    return found


def session_members(session: int) -> list[psutil.Process]:
    """Return the live processes of *session*, zombies left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def descendants(pid: int) -> list[psutil.Process]:
    """Return the live processes below *pid*, itself left out."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
    return found


def kill_all(processes: Iterable[psutil.Process], grace_s: float) -> None:
    """End *processes*: SIGTERM, *grace_s* seconds to leave, then SIGKILL."""
    alive = list(processes)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


class Segments:
    """The shared-memory segments of one run."""

    def __init__(self) -> None:
        self._owned: set[str] = set()

    def note(self, processes: Iterable[psutil.Process]) -> None:
        """Remember what *processes* have mapped now."""
        for process in processes:
            self._owned |= mapped_segments(process.pid)

    def free(self, wait_s: float = 5.0) -> list[str]:
        """Remove the owned segments that no live process has mapped any more.

        Waits up to *wait_s* seconds for processes that are still going away.

        Returns:
            The segments that are still there, because something still uses them.
        """
        deadline = time.monotonic() + wait_s
        while True:
            left = {path for path in self._owned if Path(path).exists()}
            if not left:
                break
            in_use = left & _mapped_by_anyone()
            for path in left - in_use:
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
            if not in_use or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        left = {path for path in self._owned if Path(path).exists()}
        self._owned = set(left)
        return sorted(left)


def _mapped_by_anyone() -> set[str]:
    found: set[str] = set()
    for pid in psutil.pids():
        found |= mapped_segments(pid)
    return found
