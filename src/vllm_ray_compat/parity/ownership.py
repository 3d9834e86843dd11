"""What a run owns on this machine: processes and shared-memory segments, and how they are freed.

An arm is its own session, so what it spawned is found by session id even after the arm died.
Workers of Ray are children of the raylet, not of the arm.

A segment is owned when it is a file directly in /dev/shm, of this user, that was not there when
the run began and that a process of ours had mapped. It is noted while that process lives, because
a killed one can no longer be asked. (vLLM's message queues, its CPU all-reduce and Ray's mutable
objects leave their segments behind when a worker is killed, and killing its actors is how
RayExecutorV2 shuts down.)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from vllm_ray_compat.parity import guard
from vllm_ray_compat.shared_memory import FOLDER, mapped_segments, unlink_unused

#: Seconds between two looks at who still uses a segment.
_PAUSE_S = 0.2


def spawn(
    module: str,
    *arguments: str,
    log: Path,
    environ: Mapping[str, str],
    python: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` in a session of its own, which ends when this process dies.

    Args:
        module: what to run.
        arguments: its arguments.
        log: where both of its streams go.
        environ: its whole environment.
        python: the interpreter; default this one.
    """
    with log.open("wb") as stream:
        return subprocess.Popen(
            [python or sys.executable, str(guard.__file__), module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )


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
    """The shared-memory segments of one run; made before its first process."""

    def __init__(self) -> None:
        self._before = _in_shm()
        self._owned: set[str] = set()

    def note(self, processes: Iterable[psutil.Process]) -> None:
        """Remember what *processes* have mapped now."""
        for process in processes:
            self._owned |= {
                path for path in mapped_segments(process.pid) - self._before if _is_ours(path)
            }

    def free(self, wait_s: float = 5.0) -> list[str]:
        """Remove the owned segments that no live process has mapped any more.

        Waits up to *wait_s* seconds for processes that are still going away.

        Returns:
            The segments that are still there, because something still uses them.
        """
        self._owned = unlink_unused(self._owned, _mapped_by_anyone, wait_s, _PAUSE_S)
        return sorted(self._owned)


def _in_shm() -> set[str]:
    try:
        return {str(path) for path in FOLDER.iterdir()}
    except OSError:
        return set()


def _is_ours(path: str) -> bool:
    try:
        return Path(path).stat().st_uid == os.getuid()
    except OSError:
        return False


def _mapped_by_anyone() -> set[str]:
    found: set[str] = set()
    for pid in psutil.pids():
        found |= mapped_segments(pid)
    return found
