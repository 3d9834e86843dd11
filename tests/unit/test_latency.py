"""Latency distributions: right numbers, bounded memory, nothing for what was not measured."""

from __future__ import annotations

import random

import pytest

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.latency import Gatherer, latency_of

from .helpers import result


def test_first_token_and_between_tokens() -> None:
    found = latency_of(
        iter(
            [
                result(request="a", token_times_s=[1.0, 1.5, 1.5, 2.5]),
                result(request="b", token_times_s=[3.0]),
                result(request="c", token_times_s=None),
                result(request="d", token_times_s=[]),
                cap.Result(workload="w", request="e", error=cap.RequestError(type="E", message="")),
            ]
        )
    )
    assert found.ttft_s is not None
    assert (found.ttft_s.n, found.ttft_s.min, found.ttft_s.p50, found.ttft_s.max) == (2, 1, 2, 3)
    assert found.itl_s is not None
    assert found.itl_s.quantiles == [0.0, 0.5, 1.0]
    assert found.itl_s.p90 == pytest.approx(0.9)


def test_nothing_was_measured() -> None:
    found = latency_of([result(), result(request="r1")])
    assert (found.ttft_s, found.itl_s) == (None, None)


def test_one_token_each_has_no_time_between_tokens() -> None:
    found = latency_of([result(token_times_s=[0.25])])
    assert found.itl_s is None
    assert found.ttft_s is not None
    assert found.ttft_s.quantiles == [0.25]
    assert {found.ttft_s.p50, found.ttft_s.p99, found.ttft_s.max} == {0.25}


def test_percentiles_of_many() -> None:
    gatherer = Gatherer()
    for value in random.Random(1).sample(range(1001), 1001):
        gatherer.add(float(value))
    found = gatherer.distribution()
    assert found is not None
    assert found.exact
    assert (found.p50, found.p90, found.p99) == (500, 900, 990)
    assert found.quantiles == [float(10 * i) for i in range(101)]


def test_more_than_can_be_kept_is_sampled_and_says_so() -> None:
    gatherer = Gatherer(most=2000)
    for value in range(100_000):  # rising: a sample of the first 2000 would be far off
        gatherer.add(float(value))
    found = gatherer.distribution()
    assert found is not None
    assert not found.exact
    assert (found.n, found.min, found.max) == (100_000, 0, 99_999)
    assert found.p50 == pytest.approx(50_000, rel=0.08)
    assert found.p90 == pytest.approx(90_000, rel=0.04)
    assert len(gatherer._kept) == 2000
    assert found.quantiles == sorted(found.quantiles)
