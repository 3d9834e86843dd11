"""A result of a benchmark: its file, its tables, its plot, and an earlier one beside it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.documents import ROOT
from vllm_ray_compat.bench import baseline, report, result, tables
from vllm_ray_compat.bench.machine import this_machine
from vllm_ray_compat.bench.metrics import METRICS
from vllm_ray_compat.bench.protocol import Ready
from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.report.files import write_whole

ABOUT = Ready(
    executor="vllm.v1.executor.ray_executor_v2:RayExecutorV2",
    versions={"vllm": "0.32.0", "python": "3.11.7"},
    pids=[1],
    start_s={"driver imports": 2.0, "init": 1.0},
)


def made(loss: float = 1.0, passes: int = 8, **changed: Any) -> result.Bench:
    """A result in which v2 is slower than mp by a factor, and a floor is faster."""
    turns = []
    for number in range(passes):
        noise = 1 + 0.001 * (number % 3)
        arms = {"mp": 100.0, "v2": 100.0 * loss * noise, "zmq-ipc": 20.0}
        for place, (arm, value) in enumerate(arms.items()):
            turns.append(
                result.Turn.model_validate(
                    {
                        "topology": "tp2",
                        "pass": number,
                        "place": place,
                        "arm": arm,
                        "engine": number + 1,
                        "at_s": 1.0,
                        "rested": True,
                        "measured": {
                            "rpc.small.p50_us": value,
                            "rpc.small.per_s": 1e6 / value,
                            "idle.cores": 0.0,
                            "start.init": 1.0,
                        },
                    }
                )
            )
    return result.Bench.model_validate(
        {
            "kind": "control-plane",
            "package": "0.1.0",
            "started_at": 1.0,
            "took_s": 60.0,
            "complete": True,
            "command": "vllm-ray-compat bench control-plane",
            "machine": this_machine(),
            "engines": "fresh",
            "engine_core": "inproc",
            "engine_args": {},
            "variables": {"RAYCOMPAT_REPAIRS": "none"},
            "margin": 0.01,
            "arms": [
                result.ArmResult(
                    topology="tp2",
                    name=name,
                    role=role,  # type: ignore[arg-type]
                    backend=name,
                    about=ABOUT,
                    medians={"rpc.small.p50_us": value, "rpc.small.per_s": 1e6 / value},
                )
                for name, role, value in (
                    ("mp", "reference", 100.0),
                    ("v2", "candidate", 100.0 * loss),
                    ("zmq-ipc", "floor", 20.0),
                )
            ],
            "comparisons": {"tp2": result.compared(turns, "mp", ["v2"], 0.01)},
            "turns": turns,
            **changed,
        }
    )


def test_the_file_is_read_back_and_fits_its_schema(tmp_path: Path) -> None:
    bench = made()
    write_whole(tmp_path / "bench.json", bench.to_json())
    assert result.read(tmp_path / "bench.json") == bench
    schema = json.loads((ROOT / "schemas" / "bench.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(bench.to_json()), schema)
    assert json.loads(bench.to_json())["schema"] == "vllm_ray_compat.bench/1"
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is no result"),
        ('{"schema": "other/1"}', "schema"),
        (made().to_json().replace('"pass":', '"passt":'), "pass"),
    ],
)
def test_a_file_that_is_no_result(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        result.read(tmp_path / "b.json")
    with pytest.raises(UsageError, match="cannot be read"):
        result.read(tmp_path / "none.json")


def test_only_whole_pairs_are_compared_and_no_phases() -> None:
    turns = [turn for turn in made().turns if (turn.arm, turn.in_pass) != ("v2", 7)]
    found = result.compared(turns, "mp", ["v2"], 0.01)
    assert {one.metric for one in found} == {"rpc.small.p50_us", "rpc.small.per_s"}
    assert {len(one.ratios) for one in found} == {7}
    assert result.compared(turns, "mp", ["legacy"], 0.01) == []


def test_the_tables_say_what_was_shown() -> None:
    slow, same, few = tables.tables(made(1.2)), tables.tables(made()), tables.tables(made(1.2, 4))
    assert [row[-1] for row in slow[0].rows] == ["overhead", "overhead"]
    assert [row[-1] for row in same[0].rows] == ["equivalent", "equivalent"]
    assert [row[-1] for row in few[0].rows] == ["not shown (too few passes)"] * 2
    titles = [table.title for table in slow]
    assert titles == [
        "tp2: v2 against mp, 8 passes",
        "tp2: rpc.small, round trip, µs",
        "tp2: start, s",
    ]
    assert [row[0] for row in slow[1].rows] == ["zmq-ipc", "mp", "v2"]  # the fastest first
    assert slow[1].rows[2][-1] == "6.0"
    assert all(len(row) == len(table.columns) for table in slow for row in table.rows)


def test_markdown() -> None:
    text = report.markdown(made(1.2, remarks=["a | b"]), "bench <control-plane>")
    lines = text.splitlines()
    assert lines[0] == "### bench &#60;control-plane&#62;"
    assert "a &#124; b" in text
    rows = [line for line in lines if line.startswith("| rpc.small")]
    assert rows
    assert all(line.count("|") == 7 for line in rows)
    assert "1.200" in rows[0]
    assert "RAYCOMPAT&#95;REPAIRS=none" in text or "RAYCOMPAT_REPAIRS=none" in text
    assert "None" not in text


def test_the_plot_is_svg_with_a_row_for_each_claim_and_the_same_every_time() -> None:
    from vllm_ray_compat.bench.plot import plot

    text = plot(made(1.2))
    ET.fromstring(text)
    assert text.count("v2  rpc.small") == 2
    assert plot(made(1.2)) == text
    ET.fromstring(plot(made(comparisons={})))


def test_a_regression_is_a_loss_beyond_both_intervals() -> None:
    then = made(1.1)
    assert baseline.against(made(1.1), then).regressions == []
    assert baseline.against(made(1.0), then).regressions == []
    found = baseline.against(made(1.3), then)
    assert found.compared == 2
    assert [one.now.metric for one in found.regressions] == ["rpc.small.p50_us", "rpc.small.per_s"]
    assert "tp2 v2 rpc.small.p50_us: ratio 1.301 (1.300 to 1.303)" in str(found.regressions[0])
    assert "in the baseline 1.101" in str(found.regressions[0])


def test_a_baseline_that_says_nothing() -> None:
    with pytest.raises(UsageError, match="bench decode"):
        baseline.against(made(), made(kind="decode"))
    with pytest.raises(UsageError, match="six or more passes"):
        baseline.against(made(passes=4), made())
    with pytest.raises(UsageError, match="nothing was compared"):
        baseline.against(made(), made(comparisons={}))
    machine = this_machine().model_copy(update={"processor": "another"})
    remarks = baseline.against(made(), made(machine=machine, engines="kept")).remarks
    assert [remark.partition(":")[0] for remark in remarks] == [
        "Another machine",
        "Measured in another way",
    ]


def test_a_loss_is_above_1_for_what_is_worse() -> None:
    assert METRICS["p50_us"].loss(100.0, 120.0) == pytest.approx(1.2)
    assert METRICS["per_s"].loss(100.0, 80.0) == pytest.approx(1.25)
