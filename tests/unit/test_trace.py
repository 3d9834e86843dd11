"""The step trace: taken of a scheduler, and compared. The scheduler is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as N
from typing import Any

import pytest

from vllm_ray_compat.parity.capture import CaptureError
from vllm_ray_compat.parity.finding import capture_files
from vllm_ray_compat.parity.trace import ENDING, Tracer, first_difference, read_steps


class Scheduler:
    def __init__(self) -> None:
        self.got: list[Any] = []

    def update_from_output(self, scheduler_output: Any, model_output: Any) -> str:
        self.got.append((scheduler_output, model_output))
        scheduler_output.num_scheduled_tokens.clear()  # vLLM's may change what it was given
        return "outputs"


def scheduled(new: dict[str, int], tokens: dict[str, int], finished: tuple[str, ...] = ()) -> Any:
    return N(
        scheduled_new_reqs=[N(req_id=k, prompt_token_ids=[0] * n) for k, n in new.items()],
        num_scheduled_tokens=dict(tokens),
        finished_req_ids=set(finished),
    )


def sampled(tokens: dict[str, list[int]], logprobs: Any = None) -> Any:
    return N(
        sampled_token_ids=list(tokens.values()),
        req_id_to_index={name: index for index, name in enumerate(tokens)},
        logprobs=logprobs,
    )


def trace(path: Path, suffix: str, second: int = 8, chunk: int = 4, steps: int = 3) -> Path:
    """Trace three steps of two requests; ids carry what vLLM adds to them."""
    scheduler = Scheduler()
    tracer = Tracer(scheduler, path)
    tracer.workload = "greedy"
    a, b = f"raycompat-7-{suffix}", f"raycompat-9-{suffix}"
    rows = [
        (scheduled({a: 3, b: chunk}, {a: 3, b: chunk}), sampled({a: [5], b: [6]})),
        (scheduled({}, {a: 1, b: 1}), sampled({a: [7], b: [second]})),
        (scheduled({}, {b: 1}, (a,)), sampled({b: [9]})),
    ]
    for inputs, outputs in rows[:steps]:
        assert scheduler.update_from_output(inputs, outputs) == "outputs"
    tracer.close()
    assert len(scheduler.got) == steps
    scheduler.update_from_output(*rows[0])
    assert len(list(read_steps(path))) == steps  # closed: this one is not traced
    return path


def test_the_same_steps_are_equal_whatever_the_ids(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", "0f"), trace(tmp_path / "b", "e1")
    assert first_difference(a, b) is None
    step = next(read_steps(a))
    assert (step.new, step.scheduled) == ({"r0": 3, "r1": 4}, {"r0": 3, "r1": 4})
    assert step.sampled == {"r0": [5], "r1": [6]}


def test_another_token_is_placed_at_its_step_and_request(tmp_path: Path) -> None:
    found = first_difference(trace(tmp_path / "a", "x"), trace(tmp_path / "b", "x", second=80))
    assert found is not None
    assert (found.step, found.side, found.requests) == (1, "output", ["r1"])


def test_another_schedule_is_placed_at_the_input(tmp_path: Path) -> None:
    found = first_difference(trace(tmp_path / "a", "x"), trace(tmp_path / "b", "x", chunk=2))
    assert found is not None
    assert (found.step, found.side, found.requests) == (0, "input", ["r1"])


def test_a_trace_that_ends_early_differs_there(tmp_path: Path) -> None:
    found = first_difference(trace(tmp_path / "a", "x"), trace(tmp_path / "b", "x", steps=2))
    assert found is not None
    assert (found.step, found.candidate) == (2, "end")


def test_other_logprobs_are_found_bit_for_bit(tmp_path: Path) -> None:
    import numpy as np

    paths = []
    for name, value in (("a", 0.5), ("b", np.nextafter(np.float32(0.5), np.float32(1)))):
        scheduler = Scheduler()
        tracer = Tracer(scheduler, tmp_path / name)
        logprobs = (np.array([[1]]), np.array([[value]], dtype=np.float32), None)
        scheduler.update_from_output(
            scheduled({"raycompat-1": 1}, {"raycompat-1": 1}),
            sampled({"raycompat-1": [1]}, logprobs),
        )
        tracer.close()
        paths.append(tmp_path / name)
    found = first_difference(*paths)
    assert found is not None
    assert found.side == "output"
    assert set(found.reference) == {"logprobs"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        ("{}\n", "t:1: expected a trace with schema"),
        ('{"schema": "vllm_ray_compat.trace/9"}\n', "found schema 'vllm_ray_compat.trace/9'"),
        ('{"schema": "vllm_ray_compat.trace/1"}\n{"step": 0}\n', "t:2: not a step of"),
        ('{"schema": "vllm_ray_compat.trace/1"}\n{"step": 0', None),
    ],
)
def test_a_file_that_is_no_trace_says_where(tmp_path: Path, text: str, said: str | None) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    if said is None:
        assert list(read_steps(path)) == []
        return
    with pytest.raises(CaptureError) as caught:
        list(read_steps(path))
    assert said in str(caught.value)


def test_a_trace_is_not_taken_for_a_capture(tmp_path: Path) -> None:
    (tmp_path / "tp2-reference-legacy.jsonl").write_text("")
    (tmp_path / f"tp2-reference-legacy{ENDING}").write_text("")
    assert [file.name for file in capture_files(tmp_path)] == ["tp2-reference-legacy.jsonl"]
