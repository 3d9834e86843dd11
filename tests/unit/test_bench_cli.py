"""What ``bench`` refuses before it measures anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_bench_results import made
from vllm_ray_compat.bench.plan import Measure, Options, plan, remarks
from vllm_ray_compat.bench.run import MARKER, prepare
from vllm_ray_compat.cli.bench import command
from vllm_ray_compat.errors import UsageError


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_ray_compat", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decode", "--topology", "tp3"], "do not divide"),
        (["decode", "--topology", "xx"], "xx"),
        (["decode", "--topology", "tp2", "--topology", "tp2"], "asked for twice"),
        (["decode", "--reference", "legcy"], "Did you mean 'legacy'?"),
        (["decode", "--reference", "mp", "--candidate", "mp"], "The backend mp is asked for twice"),
        (["decode", "--margin", "1"], "--margin 1 is no fraction"),
        (["decode", "--engine-core", "proces"], "Did you mean 'process'?"),
        (["decode", "--engine-arg", "x"], "NAME=VALUE"),
        (["decode", "--engine-arg", "tensor_parallel_size=4"], "sets it itself, from --topology"),
        (["control-plane", "--engine-arg", "worker_cls=x.Y"], "from the workers that do nothing"),
        (["decode", "--model", "nowhere"], "does not exist"),
        (["decode", "--against", "nowhere.json"], "cannot be read"),
        (["decode", "--save-baseline", "no/such/folder/b.json"], "its folder does not exist"),
        (["decode", "--batch-size", "0"], "batch-size"),
        (["control-plane", "--world-size", "3"], "do not divide"),
        (["control-plane", "--calls", "1"], "calls"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = bench(*arguments, "--report-dir", str(tmp_path / "report"))
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "report").exists()


def test_a_baseline_of_another_kind_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(made().to_json(), encoding="utf-8")
    done = bench("decode", "--against", str(tmp_path / "b.json"))
    assert done.returncode == 2
    assert "a result of `bench control-plane`, not of `bench decode`" in " ".join(
        done.stderr.split()
    )


def options(folder: Path, **changed: object) -> Options:
    return Options(
        **{
            "kind": "decode",
            "reference": "mp",
            "candidates": ("v2",),
            "topologies": ("tp2",),
            "measures": (Measure("batch8", "batch", {"size": 8}),),
            "report_dir": folder,
            **changed,
        }  # type: ignore[arg-type]
    )


def test_a_plan_names_its_arms_and_their_roles(tmp_path: Path) -> None:
    own = "vllm_ray_compat.executors.ray_v2:RayExecutorV2"
    found = plan(options(tmp_path, candidates=("v2", own), floors=("zmq-ipc", "ray-actor")))
    assert [(arm.name, found.role(arm), arm.on_ray) for arm in found.arms] == [
        ("mp", "reference", False),
        ("v2", "candidate", True),
        ("RayExecutorV2", "candidate", True),
        ("zmq-ipc", "floor", False),
        ("ray-actor", "floor", True),
    ]
    assert found.candidates == ["v2", "RayExecutorV2"]


def test_an_unknown_floor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'zmq-tcp'"):
        plan(options(tmp_path, floors=("zmq-tpc",)))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="not of a benchmark"):
        prepare(plan(options(tmp_path)))
    with pytest.raises(UsageError, match="is a file"):
        prepare(plan(options(tmp_path / "theirs.txt")))
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.txt"]


def test_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    checked = plan(options(folder))
    prepare(checked)
    for name in ("bench.json", "tp2-v2.log", "mine.txt"):
        (folder / name).write_text("x", encoding="utf-8")
    prepare(checked)
    assert {path.name for path in folder.iterdir()} == {MARKER, "mine.txt"}


def test_what_a_person_should_know_of_the_figures(tmp_path: Path) -> None:
    assert remarks(options(tmp_path), load=0.1, cores=2) == []
    few, busy = remarks(options(tmp_path, passes=4), load=1.5, cores=2)
    assert "fewer than 5 passes" in few
    assert "load 1.5 on 2 cores" in busy


def test_the_command_in_a_result_is_anybodys() -> None:
    argv = ["bench", "decode", "--reference", "mp@/home/me/envs/0.19.1/bin/python", "--json"]
    argv += ["--report-dir", "/home/me/report", "--against=/home/me/b.json", "--passes", "8"]
    assert command(argv) == ("vllm-ray-compat bench decode --reference mp@PYTHON --passes 8")
    assert command(["bench", "decode", "--engine-arg", "a=[1, 2]"]).endswith("'a=[1, 2]'")
