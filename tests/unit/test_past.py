"""Teacher forcing: what is forced, how, and what is made of it. The real processor is run by the
engine tests; here its arithmetic."""

from __future__ import annotations

import importlib

import pytest

from tests.unit.helpers import capture, output, result
from vllm_ray_compat.parity.past import EXTRA, PROCESSOR, compare_forced, forced_suite
from vllm_ray_compat.parity.workloads import load_suite


def test_one_token_stays_possible() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm.v1.sample.logits_processor")
    from vllm_ray_compat.parity.forcing import force

    logits = torch.tensor([1.0, 2.0, 3.0])
    assert force([1, 0], [], logits.clone()).tolist() == [float("-inf"), 2.0, float("-inf")]
    assert force([1, 0], [1], logits.clone()).tolist() == [1.0, float("-inf"), float("-inf")]
    assert force([1, 0], [1, 0], logits.clone()).tolist() == [1.0, 2.0, 3.0]


def test_vllm_takes_the_processor_for_one() -> None:
    interface = pytest.importorskip("vllm.v1.sample.logits_processor")
    module, _, name = PROCESSOR.partition(":")
    ForceTokens = getattr(importlib.import_module(module), name)
    assert issubclass(ForceTokens, interface.LogitsProcessor)
    assert not ForceTokens.__abstractmethods__


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
