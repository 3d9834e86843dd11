"""Teacher forcing: what is forced, how, and what is made of it. The real processor is run by the
engine tests; here its arithmetic."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.unit.helpers import capture, output, result
from vllm_ray_compat.parity.past import EXTRA, compare_forced, forced_suite
from vllm_ray_compat.parity.workloads import load_suite

PROCESSOR_SCRIPT = """
import importlib, torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm_ray_compat.parity.past import PROCESSOR

module, _, name = PROCESSOR.partition(":")
loaded = importlib.import_module(module)
kind = getattr(loaded, name)
assert issubclass(kind, LogitsProcessor)
assert not kind.__abstractmethods__
logits, none = torch.tensor([1.0, 2.0, 3.0]), float("-inf")
assert loaded.force([1, 0], [], logits.clone()).tolist() == [none, 2.0, none]
assert loaded.force([1, 0], [1], logits.clone()).tolist() == [1.0, none, none]
assert loaded.force([1, 0], [1, 0], logits.clone()).tolist() == [1.0, 2.0, 3.0]
"""


@pytest.mark.skipif(find_spec("vllm") is None, reason="no vLLM here")
def test_vllm_takes_the_processor_and_one_token_stays_possible() -> None:
    """In a process of its own: an imported vLLM changes what other tests see."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESSOR_SCRIPT], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_the_whole_batch_is_forced() -> None:
    smoke = load_suite("smoke")
    stop = next(w for w in smoke.workloads if w.name == "stop")
    answers = [
        result("stop", request.id, outputs=[output(token_ids=[5, 6, 7])])
        for request in stop.requests
    ]
    forced = forced_suite(smoke, "default", {("stop", "string")}, capture(*answers))
    assert forced is not None
    [workload] = forced.workloads
    assert [r.id for r in workload.requests] == [r.id for r in stop.requests]
    sampling = workload.requests[0].sampling
    assert "stop" not in sampling  # it would end before the reference's last token
    assert (sampling["max_tokens"], sampling["logprobs"]) == (3, 1)
    assert sampling["extra_args"] == {EXTRA: [5, 6, 7]}
    sampled = workload.requests[-1].sampling
    assert (sampled["temperature"], sampled["seed"]) == (1.0, 3)


def test_what_cannot_be_forced_is_not() -> None:
    full = load_suite("full")
    several = [result("several-completions", "two", outputs=[output(), output(index=1)])]
    assert (
        forced_suite(full, "default", {("several-completions", "two")}, capture(*several)) is None
    )
    drafted = [result("speculative", "repeats")]
    assert (
        forced_suite(full, "speculative", {("speculative", "repeats")}, capture(*drafted)) is None
    )


def test_agreement_and_differences_are_counted_by_position() -> None:
    theirs = output(logprobs=[[(5, -0.5, 1)], [(6, -0.25, 1)], [(7, -1.0, 1)], [(8, -0.75, 1)]])
    mine = output(
        logprobs=[
            [(5, -0.5, 1)],
            [(6, -0.75, 2), (9, -0.5, 1)],
            [(7, -1.125, 1)],
            [(8, -0.75, 1)],
        ]
    )
    [found] = compare_forced(
        "tp2",
        "v2",
        capture(result(outputs=[theirs])),
        capture(result(outputs=[mine])),
    )
    assert (found.positions, found.agreed, found.first_disagreement) == (4, 3, 1)
    assert (found.largest_difference, found.largest_at) == (0.5, 1)


def test_a_force_that_had_no_effect_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not apply the processor"):
        compare_forced(
            "tp2",
            "v2",
            capture(result(outputs=[output()])),
            capture(result(outputs=[output(token_ids=[5, 6, 7, 9])])),
        )
