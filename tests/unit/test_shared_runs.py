"""Locks, devices and runs that processes share. No arm is started in here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.parity import shared_runs
from vllm_ray_compat.parity.device_shares import (
    DeviceShares,
    NotEnoughDevicesError,
    visible_devices,
)
from vllm_ray_compat.parity.locks import try_lock
from vllm_ray_compat.parity.plan import Options
from vllm_ray_compat.parity.shared_runs import Outcome, SharedRuns

HOLD = """
import sys, time
from pathlib import Path
from vllm_ray_compat.parity.locks import try_lock
with try_lock(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """Have another process hold the lock of *path*."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as told:
        assert told.readline() == "True\n"
    return process


def end(process: subprocess.Popen[Any]) -> None:
    """Kill a process that holds a lock."""
    process.kill()
    process.wait()


def test_a_lock_is_one_process_s_and_gone_when_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = hold(path)
    with try_lock(path) as mine:
        assert not mine
    end(process)
    with try_lock(path) as mine:
        assert mine
        with try_lock(path) as again:
            assert not again, "one lock, whoever asks"


def test_a_lock_is_not_inherited(tmp_path: Path) -> None:
    """An engine that outlives its pytest must not hold what that held."""
    path = tmp_path / "lock"
    with try_lock(path) as mine:
        assert mine
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with try_lock(path) as mine:
            assert mine
    finally:
        end(child)


class TestDevices:
    def test_all_or_none(self, tmp_path: Path) -> None:
        shares = DeviceShares(tmp_path, ["a", "b", "MIG-1/2"], None)
        with shares.take(2) as first:
            assert first == {"CUDA_VISIBLE_DEVICES": "a,b"}
            with shares.take(2) as none:
                assert none is None
            with shares.take(1) as rest:
                assert rest == {"CUDA_VISIBLE_DEVICES": "MIG-1/2"}
        with shares.take(3) as everything:
            assert everything == {"CUDA_VISIBLE_DEVICES": "a,b,MIG-1/2"}

    def test_another_process_s_device_is_not_handed_out(self, tmp_path: Path) -> None:
        process = hold(tmp_path / "device-0.lock")
        try:
            with DeviceShares(tmp_path, ["0", "1"], None).take(1) as taken:
                assert taken == {"CUDA_VISIBLE_DEVICES": "1"}
        finally:
            end(process)

    @pytest.mark.parametrize(("at_most", "runs"), [(None, 1), (1, 1), (2, 2)])
    def test_without_devices_runs_are_counted(
        self, tmp_path: Path, at_most: int | None, runs: int
    ) -> None:
        shares = DeviceShares(tmp_path, None, at_most)
        shares.check(1000)
        with shares.take(4) as one, shares.take(4) as two, shares.take(4) as three:
            assert [one, two, three] == [{}] * runs + [None] * (3 - runs)

    def test_at_most_holds_on_gpus_too(self, tmp_path: Path) -> None:
        shares = DeviceShares(tmp_path, ["0", "1"], 1)
        with shares.take(1) as one, shares.take(1) as two:
            assert one == {"CUDA_VISIBLE_DEVICES": "0"}
            assert two is None

    def test_more_than_there_are(self, tmp_path: Path) -> None:
        with pytest.raises(NotEnoughDevicesError, match=r"4 devices are needed and 2 are visible"):
            DeviceShares(tmp_path, ["0", "1"], None).check(4)

    @pytest.mark.parametrize(
        ("text", "names"),
        [("2, 3", ["2", "3"]), ("", []), ("-1", []), ("GPU-8a,MIG-b", ["GPU-8a", "MIG-b"])],
    )
    def test_named_by_the_variable(self, text: str, names: list[str]) -> None:
        assert visible_devices({"CUDA_VISIBLE_DEVICES": text}) == names

    def test_counted_by_torch(self, tmp_path: Path) -> None:
        (tmp_path / "torch.py").write_text(
            "class cuda:\n    device_count = staticmethod(lambda: 2)"
        )
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        environ.pop("CUDA_VISIBLE_DEVICES", None)
        assert visible_devices(environ) == ["0", "1"]
        (tmp_path / "torch.py").write_text("raise ImportError('no driver')")
        with pytest.raises(UnusableEnvironmentError, match=r"no driver.*CUDA_VISIBLE_DEVICES=0,1"):
            visible_devices(environ)


class TestRuns:
    @pytest.fixture
    def ran(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The topologies that were run, in their order; nothing is run."""
        ran: list[str] = []

        def run_arms(self: SharedRuns, topology: str, checked: Any, environ: Any) -> Outcome:
            ran.append(topology)
            return Outcome(report=Path(f"/{topology}"))

        monkeypatch.setattr(SharedRuns, "_run_arms", run_arms)
        return ran

    def runs(self, folder: Path, model: str = "tiny") -> SharedRuns:
        def options(topology: str) -> Options:
            return Options(
                model=model,
                topologies=(topology,),
                reference="mp",
                candidates=("mp",),
                report_dir=folder / topology,
            )

        return SharedRuns(folder, options, "me", None, os.environ)

    def test_once_for_all_and_nothing_that_is_not_waited_for(
        self, tmp_path: Path, ran: list[str]
    ) -> None:
        for _ in range(2):
            outcome = self.runs(tmp_path).outcome("tp2", ["pp2"])
            assert outcome == Outcome(report=Path("/tp2"))
        assert ran == ["tp2"]

    def test_who_has_to_wait_runs_another_topology_meanwhile(
        self, tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        process = hold(tmp_path / "tp2.lock")

        def sleep(_: float) -> None:  # when nothing is left to do but wait
            if process.poll() is None:
                end(process)

        monkeypatch.setattr(shared_runs.time, "sleep", sleep)
        assert self.runs(tmp_path).outcome("tp2", ["pp2"]).report == Path("/tp2")
        assert ran == ["pp2", "tp2"]

    def test_a_run_that_outstays_all_its_limits_is_not_waited_for(
        self, tmp_path: Path, ran: list[str]
    ) -> None:
        process = hold(tmp_path / "tp2.lock")
        line = f'{{"who": "gw7", "pid": {process.pid}, "until": {time.time() - 1}}}\n'
        (tmp_path / "tp2.starts.jsonl").write_text(line)
        try:
            error = self.runs(tmp_path).outcome("tp2").error
            assert error is not None
            assert f"gw7 (pid {process.pid}) runs the arms of tp2 and has not ended" in error
            assert ran == []
        finally:
            end(process)
        # It has died: what it left half done is done anew.
        assert self.runs(tmp_path).outcome("tp2").report == Path("/tp2")

    def test_an_error_is_everybody_s_and_nobody_tries_again(
        self, tmp_path: Path, ran: list[str]
    ) -> None:
        first = self.runs(tmp_path, model="/no/such").outcome("tp2")
        assert "'/no/such' does not exist" in str(first.error)
        assert self.runs(tmp_path).outcome("tp2") == first
        assert ran == []

    @pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
    def test_what_nobody_expected_is_told_to_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
    ) -> None:
        def fail(*_: Any) -> Outcome:
            raise kind("why")

        monkeypatch.setattr(SharedRuns, "_run_arms", fail)
        runs = self.runs(tmp_path)
        if kind is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                runs.outcome("tp2")
            assert "interrupted" in str(self.runs(tmp_path).outcome("tp2").error)
        else:
            assert runs.outcome("tp2").error == "RuntimeError: why"
            assert "Traceback" in self.runs(tmp_path).outcome("tp2").detail

    def test_one_tells_it_in_full(self, tmp_path: Path) -> None:
        assert self.runs(tmp_path).claim("arm", "one") == "one"
        assert self.runs(tmp_path).claim("arm", "two") == "one"
        assert self.runs(tmp_path).claim("arm", "one") == "one"
