"""What Ray leaves behind, and who may remove it."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_ray_compat.parity.cluster import remove_semaphores

SHM = Path("/dev/shm")


def test_semaphores_of_our_raylet_are_removed_and_no_others() -> None:
    ours, theirs = 2**22 + os.getpid(), 2**23 + os.getpid()  # no such processes
    names = [f"sem.hdr{ours}-17", f"sem.obj{ours}-17", f"sem.hdr{theirs}-17", f"sem.mp-{ours}"]
    for name in names:
        (SHM / name).touch()
    try:
        remove_semaphores({ours})
        assert [name for name in names if (SHM / name).exists()] == names[2:]
    finally:
        for name in names:
            (SHM / name).unlink(missing_ok=True)
