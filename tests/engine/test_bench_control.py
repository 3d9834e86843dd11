"""The control plane of each executor and Ray's floors, through the protocol, one after the other.

There are as many devices as one arm needs, so an arm that kept its own would stop the next.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench_arms import AskedArm, existing
from vllm_ray_compat.bench.floor_ray import CompiledGraphFloor, RayActorFloor
from vllm_ray_compat.bench.protocol import ArmSpec
from vllm_ray_compat.parity.backends import MP, MP_EXECUTOR
from vllm_ray_compat.parity.environment import arm_environment
from vllm_ray_compat.schedule import REPAIRED_EXECUTORS, Backend

pytestmark = pytest.mark.timeout(300)

FIGURES = {"p50_us", "p90_us", "p99_us", "per_s"}
CALLS = 20


def round_trips(arm: AskedArm, *paths: str) -> None:
    for path in paths:
        for payload in ("small", "large"):
            found = arm.ask("round_trip", path=path, payload=payload, calls=CALLS)
            assert set(found) == FIGURES, (path, payload)
            assert 0 < found["p50_us"] <= found["p90_us"] <= found["p99_us"], (path, payload)
            assert found["per_s"] > 0


def ends_without_a_trace(arm: AskedArm) -> None:
    segments = arm.segments()
    assert arm.end() == 0
    assert arm.left() == []
    assert existing(segments) == []


@pytest.mark.parametrize(
    ("backend", "executor"),
    [
        (MP, MP_EXECUTOR),
        *((backend.value, path) for backend, path in REPAIRED_EXECUTORS.items()),
    ],
    ids=[MP, *(backend.value for backend in REPAIRED_EXECUTORS)],
)
def test_an_executor_over_workers_that_do_nothing(
    backend: str,
    executor: str,
    tiny: Path,
    base_environment: dict[str, str],
    ray_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    on_ray = backend != MP
    spec = ArmSpec(
        name=backend,
        backend=backend,
        topology="tp2",
        model=str(tiny),
        engine_args={"max_model_len": 256},
    )
    environ = arm_environment(
        base_environment,
        backend,
        engine_core="inproc",
        ray=ray_environment if on_ray else {},
        restore_legacy=False,
    )
    with AskedArm("control_arm", spec, environ, tmp_path / "arm.log") as arm:
        ready = arm.ready
        assert ready.executor == executor
        assert bool(ready.repairs) == on_ray
        assert {"python", "vllm", "torch", "pyzmq"} | ({"ray"} if on_ray else set()) == set(
            ready.versions
        )
        assert ready.pids[0] == arm.process.pid
        assert len(set(ready.pids)) == len(ready.pids) == 3
        assert list(ready.start_s) == ["executor"]
        assert ready.start_s["executor"] > 0
        assert arm.segments() or backend == Backend.LEGACY.value  # the others' message queues
        round_trips(arm, "rpc", "step")
        ends_without_a_trace(arm)


@pytest.mark.parametrize(
    ("backend", "title"),
    [("ray-actor", RayActorFloor.title), ("compiled-graph", CompiledGraphFloor.title)],
    ids=["ray-actor", "compiled-graph"],
)
def test_a_floor_of_ray(
    backend: str,
    title: str,
    base_environment: dict[str, str],
    ray_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    spec = ArmSpec(name=backend, backend=backend, topology="tp2")
    environ = {**base_environment, **ray_environment}
    with AskedArm("floor_arm", spec, environ, tmp_path / "arm.log") as arm:
        assert arm.ready.executor == title
        assert set(arm.ready.versions) == {"python", "ray"}
        assert len(set(arm.ready.pids)) == 3
        round_trips(arm, "rpc")
        ends_without_a_trace(arm)


def test_what_cannot_be_measured_ends_the_arm_and_its_workers(
    tiny: Path, base_environment: dict[str, str], tmp_path: Path
) -> None:
    spec = ArmSpec(
        name="named",
        backend=MP_EXECUTOR,
        topology="tp1",
        model=str(tiny),
        engine_args={"max_model_len": 256},
    )
    environ = arm_environment(
        base_environment, MP_EXECUTOR, engine_core="inproc", ray={}, restore_legacy=False
    )
    with AskedArm("control_arm", spec, environ, tmp_path / "arm.log") as arm:
        assert arm.ready.executor == MP_EXECUTOR
        assert len(arm.ready.pids) == 2
        segments = arm.segments()
        assert segments
        with pytest.raises(AssertionError, match=r"ended \(1\)"):
            arm.ask("round_trip", path="steps", payload="small", calls=CALLS)
        assert "Unknown path 'steps'" in arm.text()
        assert arm.left() == []
        assert existing(segments) == []
