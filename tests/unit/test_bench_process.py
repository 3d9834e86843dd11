"""An arm from its driver's side, with floors for arms: they are real and start at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vllm_ray_compat.bench import process
from vllm_ray_compat.bench.process import ArmDiedError, ArmProcess
from vllm_ray_compat.bench.protocol import ArmSpec
from vllm_ray_compat.parity.interrupt import InterruptedRunError, StopRequest

pytest.importorskip("zmq")


@pytest.fixture
def started() -> Iterator[list[ArmProcess]]:
    arms: list[ArmProcess] = []
    yield arms
    for arm in arms:
        arm.end()


def start(
    started: list[ArmProcess], log: Path, backend: str = "zmq-ipc", stop: StopRequest | None = None
) -> ArmProcess:
    spec = ArmSpec(name="arm", backend=backend, topology="tp2")
    arm = ArmProcess("floor_arm", spec, os.environ, log, stop or StopRequest())
    started.append(arm)
    return arm


def test_an_arm_is_asked_and_ends_with_all_it_has(
    started: list[ArmProcess], tmp_path: Path
) -> None:
    arm = start(started, tmp_path / "log")
    about = arm.ready(30)
    assert arm.ready(0) == about  # known by now
    assert arm.ask(30, "round_trip", path="rpc", payload="small", calls=200)["p50_us"] > 0
    assert arm.cpu_s() > 0
    assert {process.pid for process in arm.processes()} == set(about.pids)
    arm.end()
    arm.end()
    assert not any(map(psutil.pid_exists, about.pids))
    assert arm.cpu_s() == 0


def test_an_arm_that_ends_is_told_with_its_error(started: list[ArmProcess], tmp_path: Path) -> None:
    arm = start(started, tmp_path / "log", backend="zmq-ipx")
    with pytest.raises(
        ArmDiedError, match=r"The arm arm ended: .*UsageError: Unknown floor"
    ) as told:
        arm.ready(30)
    assert str(tmp_path / "log") in str(told.value)


def test_an_arm_that_dies_while_it_is_asked(started: list[ArmProcess], tmp_path: Path) -> None:
    arm = start(started, tmp_path / "log")
    os.kill(arm.ready(30).pids[0], signal.SIGKILL)
    with pytest.raises(ArmDiedError, match="ended"):
        arm.ask(30, "round_trip", path="rpc", payload="small", calls=10)
    with pytest.raises(ArmDiedError, match="ended"):  # and asked once more
        arm.ask(30, "round_trip", path="rpc", payload="small", calls=10)


@pytest.fixture
def endless_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shutdown take as long as it wants: who waits for one that never comes hangs."""
    monkeypatch.setattr(process, "_SHUTDOWN_S", 3600)


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("endless_shutdown")
def test_an_arm_that_is_silent(started: list[ArmProcess], tmp_path: Path) -> None:
    arm = start(started, tmp_path / "log")
    about = arm.ready(30)
    os.kill(about.pids[0], signal.SIGSTOP)  # one that only starts may be ready at the first look
    with pytest.raises(ArmDiedError, match="said nothing for 0 s"):
        arm.ask(0, "round_trip", path="rpc", payload="small", calls=10)
    arm.end()
    assert not any(map(psutil.pid_exists, about.pids))


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("endless_shutdown")
def test_waiting_ends_when_the_run_is_asked_to_stop(
    started: list[ArmProcess], tmp_path: Path
) -> None:
    """And nobody waits for the end of what was being measured: that is minutes in this one."""
    with StopRequest() as stop:
        arm = start(started, tmp_path / "log", stop=stop)
        about = arm.ready(30)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(InterruptedRunError):
            arm.ask(30, "round_trip", path="rpc", payload="small", calls=5_000_000)
        arm.end()
    assert not any(map(psutil.pid_exists, about.pids))


def test_a_log_has_all_starts_of_an_arm(started: list[ArmProcess], tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of the turn before\n", encoding="utf-8")
    start(started, tmp_path / "log").ready(30)
    assert (tmp_path / "log").read_text(encoding="utf-8").startswith("of the turn before\n")
