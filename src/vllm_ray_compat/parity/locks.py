"""Locks between processes that end with their holder, however that ends.

``flock``: the kernel gives the lock back when the process that holds it is gone, also when it was
killed. Nobody can be left to wait for a file that a dead process has forgotten.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of *path* if nobody else does; yields whether it is held.

    The file is made where it is not there, and stays: were it removed, two processes could hold
    "the" lock, each of a file of its own. Children that are started meanwhile do not inherit it.
    """
    with _opened(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Wait for the lock of *path* and hold it; for what takes no time (see :func:`try_lock`)."""
    with _opened(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
