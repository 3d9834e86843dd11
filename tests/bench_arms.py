"""An arm of a benchmark, started as its driver starts it and asked by the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from vllm_ray_compat.bench.protocol import ArmSpec, Ready
from vllm_ray_compat.parity.ownership import kill_all, session_members
from vllm_ray_compat.shared_memory import mapped_segments

T = TypeVar("T")


class AskedArm:
    """A live arm; a context manager that ends it by closing its input, and kills what is left."""

    def __init__(self, module: str, spec: ArmSpec, environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"vllm_ray_compat.bench.{module}"),
                    spec.model_dump_json(),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=dict(environ),
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> AskedArm:
        try:
            self.ready = Ready(**self._answer()["ready"])
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._kill()

    def ask(self, measure: str, **how: Any) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"measure": measure, **how}) + "\n")
        self.process.stdin.flush()
        found: dict[str, float] = self._answer()["measured"]
        return found

    def cores(self, seconds: float) -> float:
        """Return the CPU time that the arm's processes use per second."""
        processes = [psutil.Process(pid) for pid in self.ready.pids]
        before = sum(sum(process.cpu_times()[:2]) for process in processes)
        time.sleep(seconds)
        return (sum(sum(process.cpu_times()[:2]) for process in processes) - before) / seconds

    def segments(self) -> set[str]:
        """Return the files in /dev/shm that the arm's processes have mapped."""
        return {path for pid in self.ready.pids for path in mapped_segments(pid)}

    def end(self, within_s: float = 30) -> int:
        """Close the arm's input, as a driver does that is done; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(within_s)

    def left(self, within_s: float = 5) -> list[int]:
        """Return the processes of the arm that still run, after a while."""
        return running(self.ready.pids, within_s)

    def text(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"The arm ended ({self.process.wait()}):\n{self.text()[-3000:]}")
        return json.loads(line)

    def _kill(self) -> None:
        kill_all(session_members(self.process.pid), grace_s=1)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def running(pids: list[int], within_s: float) -> list[int]:
    """Return which of *pids* still run after *within_s* seconds, or at once when none does."""
    return _still(pids, _runs, within_s)


def existing(paths: Iterable[str], within_s: float = 5) -> list[str]:
    """Return which of *paths* still exist after *within_s* seconds.

    Python's resource tracker, which outlives a worker, may be the one that removes its memory.
    """
    return _still(list(paths), os.path.exists, within_s)


def _still(things: list[T], there: Callable[[T], bool], within_s: float) -> list[T]:
    deadline = time.monotonic() + within_s
    while (left := [one for one in things if there(one)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
