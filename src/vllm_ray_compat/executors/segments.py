"""The shared memory that workers leave behind when they are killed.

A worker owns its response queue, a queue of its tensor parallel group and, on the CPU, buffers of
the all-reduce: a quarter of a gigabyte. Python's resource tracker would free what a killed process
owned, but Ray ends it together with the worker. So what the workers of this node have mapped is
noted while they live, and removed when nobody uses it any more. Another node is not reached.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from vllm_ray_compat.shared_memory import FOLDER, mapped_segments, unlink_unused

#: Seconds that what a worker has started gets to let go of its memory.
_OTHERS_S = 0.5
_PAUSE_S = 0.03


class Segments:
    """The segments of one engine's workers on this node."""

    def __init__(self) -> None:
        self._noted: set[str] = set()
        self._spared: set[str] = set()
        self._workers: set[int] = set()

    def spare(self, queue: Any) -> None:
        """Leave alone what *queue*, a message queue of vLLM made by this process, frees itself."""
        buffer = getattr(queue, "buffer", None)
        if buffer is not None:
            self._spared.add(str(FOLDER / buffer.shared_memory.name))

    def note(self, pids: Iterable[int]) -> None:
        """Remember what the Ray workers *pids* have mapped now; other processes are left alone."""
        for pid in pids:
            if _is_ray_worker(pid):
                self._workers.add(pid)
                self._noted |= {path for path in mapped_segments(pid) if _is_a_workers(path)}

    def free(self, wait_s: float = _OTHERS_S) -> None:
        """Remove the noted segments that nobody uses but the workers they were noted of.

        Those were killed, and may take seconds to be gone on a busy machine. Others (what a
        worker has started) are waited for, up to *wait_s* seconds.
        """
        others = partial(_mapped_by_others, self._workers)
        unlink_unused(self._noted - self._spared, others, wait_s, _PAUSE_S)


def _is_ray_worker(pid: int) -> bool:
    """Say whether *pid*, which the worker told, means the same process here (containers!)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def _is_a_workers(path: str) -> bool:
    """Say whether vLLM made it in a worker, and not Ray for everybody (its object store)."""
    name = Path(path).name
    return name.startswith("psm_") or "-cpushm_" in name


def _mapped_by_others(workers: set[int]) -> set[str]:
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in {os.getpid(), *workers}:
            found |= mapped_segments(int(entry.name))
    return found
