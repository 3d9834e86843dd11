"""What tests with real engines share: a tiny model, a Ray cluster, and the check of what is left.

The ``conftest.py`` of such a folder imports the fixtures it uses.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.tiny_model import ensure_tiny_model

HERE = Path(__file__).parent


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
                "vllm_ray_compat.bench",
                "EngineCore",
                "VLLM::",
                "ray.scripts",
            )
            if any(word in line for word in words):
                found.append(process)
    return found


def read_answers(output: str) -> list[dict[str, Any]]:
    """Return what a script of cases has printed: one JSON object a case, each on its own line."""
    return [
        json.loads(line.partition("ANSWER ")[2])
        for line in output.splitlines()
        if "ANSWER " in line
    ]


def environment_of_cases(base: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment of a script of cases, and of the Ray it uses.

    Workers import modules of these folders, so Ray must be started with them on the path.
    """
    paths = [str(HERE / "engine"), str(HERE / "conformance"), base.get("PYTHONPATH", "")]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        **more,
    }


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
def devices() -> int:
    """The number of fake devices in the Ray cluster; a module that needs more overrides it."""
    return 2


@pytest.fixture(scope="module")
def ray_environment(
    devices: int, base_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A Ray cluster with fake devices; yields the variables with which vLLM reaches it."""
    log = tmp_path_factory.mktemp("ray") / "ray.log"
    with RayCluster(devices, base_environment, log, fake_devices=True) as cluster:
        yield environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)
