"""Which files in /dev/shm a process has mapped, and their removal. Standard library alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")
_DELETED = " (deleted)"


def mapped_segments(pid: int) -> set[str]:
    """Return the files directly in /dev/shm that process *pid* has mapped.

    Empty when the process is gone or belongs to somebody whose mappings may not be read.
    """
    found: set[str] = set()
    try:
        with Path(f"/proc/{pid}/maps").open(encoding="utf-8", errors="replace") as maps:
            for line in maps:
                # address perms offset device inode path; a path may hold spaces
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and not fields[5].endswith(_DELETED):
                    path = Path(fields[5])
                    if path.parent == FOLDER:
                        found.add(str(path))
    except OSError:
        return set()
    return found


def unlink_unused(
    paths: Iterable[str], mapped: Callable[[], set[str]], wait_s: float, pause_s: float
) -> set[str]:
    """Remove those of *paths* that nobody uses, waiting for the others.

    Args:
        paths: files; whoever calls says that they are his to remove.
        mapped: returns what is in use now; called anew at every look.
        wait_s: seconds that users get to let go.
        pause_s: seconds between two looks.

    Returns:
        The files that are still there: in use, or not to be removed by this user.
    """
    deadline = time.monotonic() + wait_s
    while left := {path for path in paths if Path(path).exists()}:
        used = left & mapped()
        for path in left - used:
            with contextlib.suppress(OSError):  # somebody else was faster, or owns it
                Path(path).unlink()
        if not used or time.monotonic() > deadline:
            break
        time.sleep(pause_s)
    return {path for path in paths if Path(path).exists()}
