"""``bench decode`` with real engines; no test asks how fast they are."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ray_compat.bench import result
from vllm_ray_compat.parity.backends import MP_EXECUTOR
from vllm_ray_compat.schedule import REPAIRED_EXECUTORS, Backend

pytestmark = pytest.mark.timeout(400)

DECODE = [sys.executable, "-m", "vllm_ray_compat", "bench", "decode", "--candidate", "v2"]
SMALL = ["--batch-size", "4", "--rate", "50", "--tokens", "8", "--repeats", "1", "--requests", "5"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, result.Bench]:
    folder = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        [
            *(*DECODE, *SMALL, "--keep", "--passes", "6", "--json"),
            *("--report-dir", str(folder / "report")),
            *("--save-baseline", str(folder / "baseline.json")),
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    bench = result.Bench.model_validate_json(done.stdout)
    assert result.read(folder / "report" / "bench.json") == bench
    assert result.read(folder / "baseline.json") == bench
    return folder, bench


def test_arms_take_turns_and_say_what_ran(kept: tuple[Path, result.Bench]) -> None:
    _, bench = kept
    assert [turn.arm for turn in bench.turns] == ["mp", "v2", "v2", "mp"] * 3
    assert {turn.engine for turn in bench.turns} == {1}
    about = {arm.name: arm.about for arm in bench.arms}
    assert about["mp"].executor == MP_EXECUTOR
    assert about["v2"].executor == REPAIRED_EXECUTORS[Backend.V2]
    assert about["v2"].repairs
    for arm in about.values():
        assert list(arm.start_s) == [
            "driver imports",
            "processes",
            "worker imports",
            "init",
            "warm-up",
        ]
        assert all(seconds >= 0 for seconds in arm.start_s.values())
        assert arm.start_s["worker imports"] > 0.5  # of vLLM and torch, in any process
        assert len(set(arm.pids)) == 3
    assert bench.complete


def test_every_turn_has_every_metric(kept: tuple[Path, result.Bench]) -> None:
    _, bench = kept
    of_a_batch = ("tokens_per_s", "steps_per_s", "step_p50_us", "ttft_p50_ms", "itl_p50_ms")
    of_arrivals = ("requests_per_s", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms")
    expected = {f"batch4.{name}" for name in (*of_a_batch, "itl_p99_ms")}
    expected |= {f"rate50.{name}" for name in of_arrivals}
    for turn in bench.turns:
        assert set(turn.measured) == expected | {"idle.cores"}
        assert all(turn.measured[name] > 0 for name in expected)
    compared = {one.metric: one for one in bench.comparisons["tp2"]}
    assert set(compared) >= expected
    assert all(len(one.ratios) == 6 and one.interval is not None for one in compared.values())


def test_the_report_is_written(kept: tuple[Path, result.Bench]) -> None:
    folder, _ = kept
    text = (folder / "report" / "bench.md").read_text(encoding="utf-8")
    assert "tp2: v2 against mp, 6 passes" in text
    assert (folder / "report" / "bench.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_an_arm_that_cannot_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(*DECODE, *SMALL, "--engine-arg", "gpu_memory_utilization=7"),
            *("--report-dir", str(tmp_path / "report")),
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 1
    assert "The arm mp ended" in done.stderr
    assert "gpu_memory_utilization" in done.stderr
    assert "bench decode" not in done.stdout


def test_an_interrupted_run_keeps_its_turns_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report"
    with subprocess.Popen(
        [*DECODE, *SMALL, "--report-dir", str(report)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "pass 1, v2: starting" in line:
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, "".join(told) + errors
    assert "every process of this run was ended" in errors
    found = json.loads((report / "bench.json").read_text(encoding="utf-8"))
    assert [turn["arm"] for turn in found["turns"]] == ["mp"]
    assert found["complete"] is False
    assert found["comparisons"] == {"tp2": []}
