"""Logprob differences by position: only what may be compared, at its place, in bounded space."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.logprob_gaps import logprob_gaps

from .helpers import output, result


def one(token_ids: list[int], logprobs: Any, request: str = "r0") -> cap.Result:
    return result(request=request, outputs=[output(token_ids=token_ids, logprobs=logprobs)])


def test_equal_answers_have_no_gap() -> None:
    found = logprob_gaps([result()], [result()])
    assert (found.largest, found.largest_at, found.not_finite) == (0.0, None, 0)
    assert (found.compared, found.by_position) == (5, [0.0, 0.0, 0.0, 0.0])


def test_the_smallest_difference_a_float_can_have() -> None:
    a, b = -0.5, math.nextafter(-0.5, 0)
    found = logprob_gaps([one([5], [[(5, a, 1)]])], [one([5], [[(5, b, 1)]])])
    assert found.largest == b - a > 0
    assert found.largest_at is not None
    assert found.largest_at.position == 0


def test_the_largest_of_each_position_and_where_the_largest_of_all_is() -> None:
    reference = [
        one([1, 2], [[(1, -1.0, 1)], [(2, -2.0, 1)]], "a"),
        one([1, 2], [[(1, -1.0, 1)], [(2, -2.0, 1)]], "b"),
    ]
    candidate = [
        one([1, 2], [[(1, -1.25, 1)], [(2, -2.0, 1)]], "a"),
        one([1, 2], [[(1, -0.5, 1)], [(2, -2.125, 1)]], "b"),
    ]
    found = logprob_gaps(reference, candidate)
    assert found.by_position == [0.5, 0.125]
    place = found.largest_at
    assert place is not None
    assert (place.workload, place.request, place.output, place.position) == ("w", "b", 0, 0)


def test_tokens_are_matched_by_id_not_by_rank() -> None:
    a = one([5], [[(5, -0.5, 1), (9, -1.5, 2)]])
    b = one([5], [[(9, -1.0, 1), (7, -8.0, 2), (5, -0.5, 3)]])
    found = logprob_gaps([a], [b])
    assert (found.compared, found.by_position) == (2, [0.5])


def test_nothing_is_compared_after_the_texts_part() -> None:
    a = one([5, 6, 7], [[(5, -1.0, 1)], [(6, -1.0, 1), (8, -1.1, 2)], [(7, -1.0, 1)]])
    b = one([5, 8, 7], [[(5, -1.0, 1)], [(8, -1.0, 1), (6, -1.1, 2)], [(7, -9.0, 1)]])
    found = logprob_gaps([a], [b])
    assert len(found.by_position) == 2
    assert found.largest is not None
    assert abs(found.largest - 0.1) < 1e-12


def test_values_that_are_not_finite_are_counted_and_not_drawn() -> None:
    a = one([5, 6], [[(5, "-inf", 1), (6, "nan", 2)], [(6, "-inf", 1)]])
    b = one([5, 6], [[(5, "-inf", 1), (6, -1.0, 2)], [(6, "nan", 1)]])
    found = logprob_gaps([a], [b])
    assert (found.compared, found.not_finite, found.largest) == (0, 2, None)
    assert found.by_position == []


def test_without_logprobs_there_is_nothing() -> None:
    found = logprob_gaps([one([5], None)], [one([5], [[(5, -1.0, 1)]])])
    assert (found.compared, found.largest) == (0, None)


def test_positions_without_a_logprob_are_gaps() -> None:
    a = one([5, 6], [None, [(6, -1.0, 1)]])
    assert logprob_gaps([a], [a]).by_position == [None, 0.0]


def test_results_in_another_order_and_missing_ones() -> None:
    a = [one([5], [[(5, -1.0, 1)]], r) for r in ("a", "b", "c")]
    b = [one([5], [[(5, -1.5, 1)]], r) for r in ("c", "x", "a")]
    found = logprob_gaps(a, b)
    assert (found.compared, found.largest) == (2, 0.5)


def test_long_completions_are_drawn_coarser_and_lose_no_peak() -> None:
    n = 5000
    values = [[(1, -1.0, 1)] for _ in range(n)]
    changed: list[Any] = [*values[:4321], [(1, -3.0, 1)], *values[4322:]]
    found = logprob_gaps([one([1] * n, values)], [one([1] * n, changed)])
    assert found.positions_per_value == 4
    assert len(found.by_position) == 1250
    assert [i for i, v in enumerate(found.by_position) if v] == [4321 // 4]
    assert found.largest_at is not None
    assert found.largest_at.position == 4321


def test_a_stream_is_not_kept() -> None:
    """Results of alike order are let go of as soon as both are read."""
    import weakref

    alive: weakref.WeakSet[cap.Result] = weakref.WeakSet()
    most = 0

    def stream() -> Iterator[cap.Result]:
        nonlocal most
        for index in range(50):
            made = one([5], [[(5, -1.0, 1)]], f"r{index}")
            alive.add(made)
            most = max(most, len(alive))
            yield made

    cap.Result.__hash__ = object.__hash__  # type: ignore[method-assign, assignment]
    try:
        assert logprob_gaps(stream(), stream()).compared == 50
    finally:
        del cap.Result.__hash__
    assert most <= 6
