"""Floors without Ray, through the protocol; and what both kinds of arms refuse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bench_arms import AskedArm, running
from vllm_ray_compat.bench import control_arm
from vllm_ray_compat.bench.echo_processes import EchoDiedError, EchoProcesses
from vllm_ray_compat.bench.floor import FLOORS, WrongEchoError, check_echo
from vllm_ray_compat.bench.floor_arm import FloorArm
from vllm_ray_compat.bench.floor_shared_memory import SharedMemoryFloor
from vllm_ray_compat.bench.protocol import ArmSpec
from vllm_ray_compat.bench.shared_area import must_yield
from vllm_ray_compat.errors import UnusableEnvironmentError, UsageError

needs_zmq = pytest.mark.skipif(find_spec("zmq") is None, reason="no pyzmq, which comes with vLLM")
WITHOUT_RAY = [
    pytest.param("zmq-ipc", marks=needs_zmq),
    pytest.param("zmq-tcp", marks=needs_zmq),
    "shared-memory",
]


def spec(backend: str, topology: str = "tp2") -> ArmSpec:
    return ArmSpec(name=backend, backend=backend, topology=topology)


def start(backend: str, folder: Path, topology: str = "tp2") -> AskedArm:
    return AskedArm("floor_arm", spec(backend, topology), os.environ, folder / "arm.log")


@pytest.mark.parametrize("backend", WITHOUT_RAY)
def test_a_floor_answers_and_leaves_nothing(backend: str, tmp_path: Path) -> None:
    with start(backend, tmp_path) as arm:
        assert arm.ready.pids[0] == arm.process.pid
        assert len(set(arm.ready.pids)) == 3
        assert list(arm.ready.start_s) == ["processes"]
        assert set(arm.ready.versions) == {"python"} | ({"pyzmq"} if "zmq" in backend else set())
        for payload in ("small", "large", "small"):
            found = arm.ask("round_trip", path="rpc", payload=payload, calls=50)
            assert set(found) == {"p50_us", "p90_us", "p99_us", "per_s"}
            assert 0 < found["p50_us"] <= found["p90_us"] <= found["p99_us"]
        assert arm.segments() == set()
        assert arm.end() == 0
        assert arm.left() == []


def test_spinning_processes_rest_between_measurements(tmp_path: Path) -> None:
    with start("shared-memory", tmp_path) as arm:
        arm.ask("round_trip", path="rpc", payload="small", calls=2)
        assert arm.cores(0.3) < 0.5
        assert arm.ask("round_trip", path="rpc", payload="small", calls=2)["per_s"] > 0


@pytest.mark.parametrize("backend", WITHOUT_RAY)
def test_processes_end_with_an_arm_that_is_killed(backend: str, tmp_path: Path) -> None:
    with start(backend, tmp_path, "tp1") as arm:
        os.kill(arm.process.pid, signal.SIGKILL)
        assert arm.left() == []


@pytest.fixture
def floor() -> Iterator[SharedMemoryFloor]:
    made = SharedMemoryFloor(1)
    yield made
    made.close()


def test_a_process_that_dies_is_no_endless_wait(floor: SharedMemoryFloor) -> None:
    with floor.awake():
        floor.round_trip(b"four")
        os.kill(floor.pids[0], signal.SIGKILL)
        with pytest.raises(EchoDiedError, match="exit code -9"):
            floor.round_trip(b"four")
    with pytest.raises(EchoDiedError, match="has ended"), floor.awake():
        pytest.fail("a dead process was woken")


def test_a_process_that_does_not_start_is_told() -> None:
    with pytest.raises(EchoDiedError, match="exit code 1"):
        EchoProcesses("vllm_ray_compat.bench.no_such_module", [[]])


@needs_zmq
def test_processes_are_ended_together() -> None:
    processes = EchoProcesses("vllm_ray_compat.bench.echo_zmq", [["tcp://127.0.0.1:9"]] * 2)
    pids = processes.pids
    processes.check()
    processes.close()
    assert running(pids, within_s=0) == []
    processes.close()


def test_an_answer_tells_what_arrived() -> None:
    check_echo(3, b"abc")
    with pytest.raises(WrongEchoError, match="Of 3 bytes sent, 2 arrived"):
        check_echo(2, b"abc")


def test_processes_yield_where_there_are_fewer_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert not must_yield(cores)
    assert must_yield(cores + 1)


def test_an_unknown_floor_is_told_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=", ".join(FLOORS)):
        FloorArm(spec("zmq"))


def test_floors_have_no_stages() -> None:
    with pytest.raises(UsageError, match="pipeline stages"):
        FloorArm(spec("zmq-ipc", "pp2"))
    with pytest.raises(UsageError, match="pipeline stages"):
        control_arm.engine_arguments(spec("mp", "tp2pp2"))


def test_a_floor_of_ray_needs_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UnusableEnvironmentError, match="RAY_ADDRESS"):
        FloorArm(spec("ray-actor"))


def test_what_cannot_be_measured_is_refused() -> None:
    arm = FloorArm(spec("shared-memory", "tp1"))
    try:
        for measure, how, known in (
            ("latency", {}, "round_trip"),
            ("round_trip", {"path": "step", "payload": "small", "calls": 2}, "rpc"),
            ("round_trip", {"path": "rpc", "payload": "huge", "calls": 2}, "small, large"),
        ):
            with pytest.raises(UsageError, match=f"Known: {known}"):
                arm.measure(measure, **how)
    finally:
        arm.close()


def test_arguments_of_the_caller_win_over_pins_not_over_the_arm() -> None:
    found = control_arm.engine_arguments(
        ArmSpec(
            name="v2",
            backend="v2",
            topology="tp4",
            model="somewhere",
            engine_args={"seed": 3, "model": "elsewhere", "worker_cls": "their.Worker"},
        )
    )
    assert (found["seed"], found["enforce_eager"]) == (3, True)
    assert (found["model"], found["tensor_parallel_size"]) == ("somewhere", 4)
    assert found["distributed_executor_backend"] == "ray"
    assert found["worker_cls"] == "vllm_ray_compat.bench.null_worker.NullWorker"


@pytest.mark.parametrize("module", ["floor_arm", "floor_ray", "control_arm"])
def test_arms_import_nothing_they_do_not_measure(module: str) -> None:
    script = (
        f"import sys, vllm_ray_compat.bench.{module}; "
        "print(*sorted({'vllm', 'ray', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
