"""Which files in /dev/shm a process has mapped. Imports nothing beyond the standard library."""

from __future__ import annotations

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
