"""Shared memory of killed workers is removed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_ray_compat.executors.segments import Segments

SHM = Path("/dev/shm")

PROGRAM = """
import mmap, sys, time
maps = []
for name in sys.argv[1:]:
    file = open("/dev/shm/" + name, "w+b")
    file.truncate(4096)
    maps.append(mmap.mmap(file.fileno(), 4096))
print("ready", flush=True)
time.sleep(60)
"""


class Worker:
    """A process that maps segments, under the name that Ray gives its workers."""

    def __init__(self, *names: str, title: str = "ray::RayWorkerProc") -> None:
        self.process = subprocess.Popen(
            [title, "-c", PROGRAM, *names],
            executable=sys.executable,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.pid = self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def name() -> Iterator[str]:
    name = f"psm_raycompat{uuid.uuid4().hex[:8]}"
    yield name
    for path in SHM.glob(f"*{name}*"):
        path.unlink()


def test_a_killed_workers_segment_is_removed(name: str) -> None:
    worker, segments = Worker(name), Segments()
    segments.note([worker.pid])
    worker.kill()
    assert (SHM / name).exists()
    segments.free(wait_s=1)
    assert not (SHM / name).exists()


def test_what_somebody_still_uses_stays(name: str) -> None:
    worker, segments = Worker(name), Segments()
    other = Worker(name, title="python")
    segments.note([worker.pid])
    worker.kill()
    segments.free(wait_s=0.1)
    assert (SHM / name).exists()
    other.kill()
    segments.free(wait_s=1)
    assert not (SHM / name).exists()


def test_other_processes_and_rays_own_segments_are_left_alone(name: str) -> None:
    plasma = f"plasma{name}"
    worker, stranger = Worker(plasma), Worker(name, title="python")
    segments = Segments()
    segments.note([worker.pid, stranger.pid, 2**22 + 1])
    worker.kill()
    stranger.kill()
    segments.free(wait_s=0.1)
    assert (SHM / name).exists()
    assert (SHM / plasma).exists()


def test_a_killed_worker_that_is_not_gone_yet_does_not_count(name: str) -> None:
    """It takes seconds on a busy machine, and nobody should wait for it."""
    worker, segments = Worker(name), Segments()
    segments.note([worker.pid])
    segments.free(wait_s=0)
    assert not (SHM / name).exists()
    worker.kill()
