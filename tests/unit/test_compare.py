from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat.parity.capture import CaptureError
from vllm_ray_compat.parity.compare import FIELDS, compare, differences
from vllm_ray_compat.parity.divergence import same_float

from .helpers import capture, output, result


def _differ(left: Any, right: Any) -> list[tuple[str, int | None]]:
    found = differences(compare("tp2", capture(left), capture(right, backend="v2")))
    return [(c.field, c.first_divergence.position) for c in found if c.first_divergence]


def test_equal_captures_compare_every_field_of_every_request() -> None:
    found = compare("tp2", capture(), capture(backend="v2"))
    assert not differences(found)
    assert len(found) == 5 * len(FIELDS)
    assert {(c.reference, c.candidate, c.topology) for c in found} == {("legacy", "v2", "tp2")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"token_ids": [5, 6, 9, 8]}, [("token_ids", 2)]),
        ({"token_ids": [5, 6, 7]}, [("token_ids", 3)]),
        ({"token_ids": [5, 6, 7, 8, 9]}, [("token_ids", 4)]),
        ({"text": "abXd"}, [("text", 2)]),
        ({"finish_reason": "stop"}, [("finish_reason", None)]),
        ({"stop_reason": 7}, [("stop_reason", None)]),
        ({"stop_reason": "7"}, [("stop_reason", None)]),
        ({"cumulative_logprob": math.nextafter(-2.5, 0)}, [("cumulative_logprob", None)]),
        ({"logprobs": None}, [("logprobs", None)]),
        ({"logprobs": [[(5, -0.5, 1), (9, -1.5, 2)]]}, [("logprobs", 1)]),
    ],
)
def test_one_field(changes: dict[str, Any], expected: list[tuple[str, int | None]]) -> None:
    assert _differ(result(), result(outputs=[output(**changes)])) == expected
    assert [f for f, _ in _differ(result(outputs=[output(**changes)]), result())] == [
        f for f, _ in expected
    ]


@pytest.mark.parametrize(
    ("position", "entry"),
    [
        (0, (5, -0.501, 1)),
        (1, (6, -0.25, 2)),
        (2, (8, -1.0, 1)),
        (3, (8, math.nextafter(-0.75, 0), 1)),
    ],
)
def test_any_bit_of_a_logprob(position: int, entry: tuple[int, float, int]) -> None:
    changed = output()
    assert changed.logprobs is not None
    changed.logprobs[position] = [entry, *(changed.logprobs[position] or [])[1:]]
    assert _differ(result(), result(outputs=[changed])) == [("logprobs", position)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prompt_token_ids": [1, 3]}, [("prompt_token_ids", 1)]),
        ({"prompt_logprobs": [None, [(2, -3.0, 5)]]}, [("prompt_logprobs", 1)]),
        ({"prompt_logprobs": [None, None]}, [("prompt_logprobs", 1)]),
        ({"num_cached_tokens": 16}, [("num_cached_tokens", None)]),
    ],
)
def test_fields_of_the_request(
    changes: dict[str, Any], expected: list[tuple[str, int | None]]
) -> None:
    assert _differ(result(), result(**changes)) == expected


def test_the_completion_is_named_when_there_are_several() -> None:
    left = result(outputs=[output(), output(index=1)])
    right = result(outputs=[output(), output(index=1, token_ids=[5, 6, 7, 9])])
    (found,) = differences(compare("tp2", capture(left), capture(right)))
    assert found.first_divergence is not None
    assert (found.first_divergence.output, found.first_divergence.position) == (1, 3)
    assert (found.first_divergence.reference, found.first_divergence.candidate) == (8, 9)


def test_a_completion_too_few() -> None:
    left = result(outputs=[output(), output(index=1)])
    (found,) = differences(compare("tp2", capture(left), capture(result())))
    assert found.field == "outputs"
    assert found.first_divergence is not None
    assert found.first_divergence.position == 1


def test_completions_in_another_order() -> None:
    left = result(outputs=[output(), output(index=1)])
    right = result(outputs=[output(index=1), output()])
    (found,) = differences(compare("tp2", capture(left), capture(right)))
    assert (found.field, found.first_divergence and found.first_divergence.position) == (
        "outputs",
        0,
    )


@pytest.mark.parametrize("name", ["suite", "topology"])
def test_captures_of_different_things_are_refused(name: str) -> None:
    other = capture()
    setattr(other.header, name, "another")
    with pytest.raises(CaptureError, match=f"cannot be compared: the reference is of {name}"):
        compare("tp2", capture(), other)


def test_a_missing_request_does_not_shift_the_others() -> None:
    left = capture(*(result(request=f"r{i}") for i in range(4)))
    right = capture(*(result(request=f"r{i}") for i in (0, 2, 3)))
    (found,) = differences(compare("tp2", left, right))
    assert (found.request, found.field) == ("r1", "present")
    (found,) = differences(compare("tp2", right, left))
    assert (found.request, found.field) == ("r1", "present")


def test_swapped_requests() -> None:
    left = capture(*(result(request=f"r{i}") for i in range(3)))
    right = capture(*(result(request=f"r{i}") for i in (1, 0, 2)))
    assert [(c.request, c.field) for c in differences(compare("tp2", left, right))] == [
        ("r0", "order"),
        ("r1", "order"),
    ]


def test_same_float_is_about_bits() -> None:
    assert not same_float(0.0, -0.0)
    assert not same_float(1.0, None)
    assert same_float(None, None)
    assert same_float("nan", "nan")
    assert not same_float("inf", "-inf")


@given(st.floats())
def test_a_float_is_the_same_as_itself(value: float) -> None:
    assert same_float(value, value)
