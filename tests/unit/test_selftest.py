"""The self test catches every fault, and would tell if the comparison missed one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_ray_compat.cli.app import app
from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import selftest as module
from vllm_ray_compat.parity.compare import Compared, compare_sources
from vllm_ray_compat.parity.faults import FAULTS, inject, write_capture
from vllm_ray_compat.parity.faults.harmless import KINDS as HARMLESS
from vllm_ray_compat.parity.redaction import is_safe
from vllm_ray_compat.parity.selftest import problem, selftest
from vllm_ray_compat.parity.stored import InMemory, StoredCapture
from vllm_ray_compat.parity.synthetic import synthetic_capture

from .helpers import capture, header, result


def test_every_fault_is_caught_and_nothing_else() -> None:
    found = selftest(runs=6, positions=4)
    assert found.holds
    assert set(found.captures) == {
        "tp2pp2-candidate-v2 (comes along)",
        "tp2pp2-reference-again-legacy (comes along)",
        "tp2pp2-reference-legacy (comes along)",
        "synthetic",
    }
    assert found.caught == found.total == 4 * (len(FAULTS) - len(HARMLESS))
    assert (found.runs, found.real_runs) == (6, 1)
    assert (found.harmless, found.false_alarms) == (4 * len(HARMLESS), [])
    assert all(count.caught == count.total == 4 for count in found.kinds.values())


def test_what_comes_along_says_nothing_of_the_machine_it_was_made_on() -> None:
    for path in module.shipped():
        text = path.read_text(encoding="utf-8")
        with StoredCapture(path) as stored:
            assert stored.header.model.startswith("tiny-")
            assert stored.engine is not None
            for worker in stored.engine.workers:
                assert worker.environment
                assert all(map(is_safe, worker.environment))
        assert not re.search(r"/(root|home|tmp|usr|mnt)/|sha256:", text)


def test_captures_given_are_used_and_what_they_cannot_carry_is_not_left_out(
    tmp_path: Path,
) -> None:
    for name, role in (("a", "reference"), ("b", "reference-again")):
        one = capture(*(result("w", f"r{i}", token_times_s=[0.5]) for i in range(3)))
        one.header = header(role=role)
        write_capture(one, tmp_path / f"{name}.jsonl")
    found = selftest(tmp_path, runs=3, positions=1)
    assert found.holds, found.missed + found.false_alarms
    assert found.real_runs == 1
    assert set(found.captures) == {*(str(tmp_path / f"{n}.jsonl") for n in "ab"), "synthetic"}
    assert found.kinds["token"].on != ["synthetic"]
    assert found.kinds["answered-error"].on == ["synthetic"]


def test_two_runs_that_differ_are_a_false_alarm(tmp_path: Path) -> None:
    good = synthetic_capture()
    write_capture(good, tmp_path / "a.jsonl")
    write_capture(inject(good, "text")[0], tmp_path / "b.jsonl")
    found = selftest(tmp_path, runs=2, positions=1)
    assert not found.holds
    assert [alarm.first for alarm in found.false_alarms] == ["greedy, g0, text"]


def test_of_a_large_capture_the_beginning_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 5_000)
    write_capture(synthetic_capture(), tmp_path / "a.jsonl")
    found = selftest(tmp_path / "a.jsonl", runs=1, positions=1)
    assert found.holds
    assert found.shortened == [str(tmp_path / "a.jsonl")]


def test_a_folder_or_a_capture_with_nothing_to_alter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no captures"):
        selftest(tmp_path)
    empty = synthetic_capture()
    empty.results = []
    write_capture(empty, tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match="holds no result"):
        selftest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": 99}, "found elsewhere in its request"),
        ({"field": "text"}, "found elsewhere in its request"),
        ({"output": 3}, "found elsewhere in its request"),
        ({"request": "g2"}, "it was not found"),
        ({"also": [("greedy", "g3")]}, "what else was to be: .*g3"),
    ],
)
def test_a_fault_found_elsewhere_is_a_miss(changes: dict[str, Any], words: str) -> None:
    good = synthetic_capture()
    altered, fault = inject(good, "token")
    compared = compare_sources("tp2pp2", InMemory(good), InMemory(altered))
    assert problem(fault, compared) is None
    told = problem(fault.model_copy(update=changes), compared)
    assert told is not None
    assert re.search(words, told)


def test_a_second_difference_is_a_miss() -> None:
    good = synthetic_capture()
    once, _ = inject(good, "text", Random(4))
    twice, fault = inject(once, "missing")
    compared = compare_sources("tp2pp2", InMemory(good), InMemory(twice))
    told = problem(fault, compared)
    assert told is not None
    assert "what else was found" in told


def _blind(*fields: str) -> Any:
    def compare(*arguments: Any, **named: Any) -> Compared:
        found = compare_sources(*arguments, **named)
        found.comparisons = [c for c in found.comparisons if c.field not in fields]
        return found

    return compare


def test_a_comparison_that_does_not_look_fails_the_self_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "compare_sources", _blind("finish_reason"))
    done = CliRunner().invoke(app, ["parity", "selftest", "--runs", "1", "--positions", "1"])
    assert done.exit_code == 1
    assert "MISSED: finish in " in done.stdout
    assert "Faults caught: 19/20" in done.stdout


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["parity", "selftest", "--runs", "2", "--positions", "1"])
    assert done.exit_code == 0
    assert "Faults caught: 20/20" in done.stdout
    assert (
        "False alarms: 0/14 (1 between real arms, 1 with copies, 12 harmless changes)"
        in done.stdout
    )
    done = CliRunner().invoke(
        app, ["parity", "selftest", "--runs", "1", "--positions", "1", "--json"]
    )
    assert json.loads(done.stdout)["schema"] == "vllm_ray_compat.selftest/1"
