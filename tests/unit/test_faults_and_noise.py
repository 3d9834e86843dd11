"""The comparison can fail: every seeded fault is found, at its place, and nothing else is."""

from __future__ import annotations

import pytest

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.compare import compare, differences
from vllm_ray_compat.parity.faults import FAULTS, FaultError, inject
from vllm_ray_compat.parity.noise import judge, worst

from .helpers import capture, output, result


@pytest.mark.parametrize("kind", FAULTS)
def test_every_fault_is_found_where_it_was_put(kind: str) -> None:
    right = capture(backend="v2")
    altered, fault = inject(right, kind)
    assert right == capture(backend="v2"), "the capture given must stay as it was"
    found = differences(compare("tp2", capture(), altered))
    places = [
        (c.field, c.workload, c.request, c.first_divergence and c.first_divergence.position)
        for c in found
    ]
    assert places[0] == (fault.field, fault.workload, fault.request, fault.position)
    assert len(places) == (2 if kind == "order" else 1)  # two requests changed places
    assert judge([], compare("tp2", capture(), altered)) == "fail"


def test_the_five_faults() -> None:
    assert FAULTS == ("token", "logprob", "order", "finish", "missing")


def test_unknown_fault() -> None:
    with pytest.raises(UsageError, match=r"Unknown fault 'tokn'. Did you mean 'token'\?"):
        inject(capture(), "tokn")


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_no_result_can_carry_is_an_error(kind: str) -> None:
    short = output(token_ids=[1], logprobs=None, finish_reason="stop")
    results = [] if kind == "missing" else [result(outputs=[short])]
    bare = capture()
    bare.results = results
    with pytest.raises(FaultError, match="none"):
        inject(bare, kind)


def test_verdict_without_noise() -> None:
    same = compare("tp2", capture(), capture())
    other = compare("tp2", capture(), inject(capture(), "token")[0])
    assert judge(same, same) == "pass"
    assert judge(same, other) == "fail"


def test_noise_in_the_same_request_is_inconclusive_and_elsewhere_fails() -> None:
    noisy = compare("tp2", capture(), inject(capture(), "token")[0])  # w/r0
    same_place = noisy
    elsewhere = compare("tp2", capture(), inject(capture(), "missing")[0])  # x/r0
    same = compare("tp2", capture(), capture())
    assert judge(noisy, same_place) == "inconclusive"
    assert judge(noisy, same) == "inconclusive"
    assert judge(noisy, elsewhere) == "fail"


def test_nothing_compared_proves_nothing() -> None:
    assert judge([], []) == "inconclusive"
    assert worst([]) == "inconclusive"


def test_the_worst_verdict_counts() -> None:
    assert worst(["pass", "pass"]) == "pass"
    assert worst(["pass", "inconclusive"]) == "inconclusive"
    assert worst(["inconclusive", "fail", "pass"]) == "fail"
