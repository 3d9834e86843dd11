"""How close two different answers were, and what only follows from a difference."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.divergence import Finding, compare_results, normalised
from vllm_ray_compat.parity.tolerance import Tolerance

from .helpers import output, result


def found(left: cap.Result, right: cap.Result, **tolerances: Tolerance) -> dict[str, Finding]:
    findings = compare_results(left, right, tolerances)
    return {field: finding for field, finding in findings.items() if finding.result != "equal"}


def results(left: cap.Result, right: cap.Result, **tolerances: Tolerance) -> dict[str, str]:
    return {field: f.result for field, f in found(left, right, **tolerances).items()}


def of(**changes: Any) -> cap.Result:
    return result(outputs=[output(**changes)])


def _logprobs(*positions: list[tuple[int, float | str, int]]) -> cap.Logprobs:
    return list(positions)


FOUR = [[(5, -0.5, 1)], [(6, -0.25, 1)], [(7, -1.0, 1)], [(8, -0.75, 1)]]


def test_two_tokens_with_ranks_gap_and_no_tie() -> None:
    left = of(logprobs=[*FOUR[:2], [(7, -0.5, 1), (9, -0.75, 2)], FOUR[3]])
    right = of(
        token_ids=[5, 6, 9, 8], logprobs=[*FOUR[:2], [(9, -0.625, 1), (7, -0.5, 2)], FOUR[3]]
    )
    first = found(left, right)["token_ids"].divergence
    assert first is not None
    assert (first.position, first.reference, first.candidate) == (2, 7, 9)
    assert (first.reference_rank, first.candidate_rank) == (2, 2)
    assert (first.reference_gap, first.candidate_gap) == (0.25, -0.125)
    assert first.tie is False


def test_a_tie() -> None:
    left = of(logprobs=[*FOUR[:2], [(7, -0.5, 1), (9, -0.5, 2)], FOUR[3]])
    right = of(token_ids=[5, 6, 9, 8], logprobs=[*FOUR[:2], [(9, -0.5, 1), (7, -0.5, 2)], FOUR[3]])
    first = found(left, right)["token_ids"].divergence
    assert first is not None
    assert first.tie is True


def test_without_logprobs_nothing_is_said_of_ranks() -> None:
    first = found(of(logprobs=None), of(logprobs=None, token_ids=[5, 6, 9, 8]))["token_ids"]
    assert first.divergence is not None
    assert first.divergence.tie is None
    assert first.divergence.reference_rank is None


def test_what_comes_after_a_token_follows_from_it() -> None:
    right = of(
        token_ids=[5, 6, 9, 10],
        text="abXY",
        finish_reason="stop",
        stop_reason=10,
        cumulative_logprob=-9.0,
        logprobs=[*FOUR[:2], [(9, -2.0, 3), (7, -1.0, 1)], [(10, -3.0, 1)]],
    )
    everything = found(of(logprobs=[*FOUR[:2], [(7, -1.0, 1)], FOUR[3]]), right)
    assert {f for f, finding in everything.items() if finding.result == "different"} == {
        "token_ids"
    }
    for field in ("text", "finish_reason", "stop_reason", "cumulative_logprob", "logprobs"):
        assert everything[field].result == "follows"
        assert everything[field].follows == "token_ids at position 2"


def test_logprobs_before_a_token_diverged_are_their_own_difference() -> None:
    right = of(token_ids=[5, 6, 9, 8], logprobs=[FOUR[0], [(6, -0.26, 1)], *FOUR[2:]])
    everything = found(of(logprobs=FOUR), right)
    assert everything["logprobs"].result == "different"
    assert everything["logprobs"].divergence is not None
    assert everything["logprobs"].divergence.position == 1
    assert everything["logprobs"].divergence.difference == pytest.approx(0.01)


def test_at_the_divergence_logprobs_of_one_token_must_still_be_equal() -> None:
    """Both sides saw the same text there: another number is another computation."""
    left = of(logprobs=[*FOUR[:2], [(7, -0.5, 1), (9, -0.75, 2)], FOUR[3]])
    same = of(token_ids=[5, 6, 9, 8], logprobs=[*FOUR[:2], [(9, -0.75, 2), (7, -0.5, 1)], FOUR[3]])
    other = of(token_ids=[5, 6, 9, 8], logprobs=[*FOUR[:2], [(9, -0.7, 2), (7, -0.5, 1)], FOUR[3]])
    assert results(left, same)["logprobs"] == "follows"
    assert results(left, other)["logprobs"] == "different"


def test_a_second_completion_has_its_own_difference() -> None:
    left = result(outputs=[output(), output(index=1)])
    right = result(
        outputs=[
            output(token_ids=[5, 6, 9, 8], cumulative_logprob=-3.0),
            output(index=1, cumulative_logprob=-4.0),
        ]
    )
    everything = found(left, right)
    assert everything["token_ids"].result == "different"
    # Of the first one it follows; of the second one, whose tokens are equal, it does not.
    assert everything["cumulative_logprob"].result == "different"
    assert everything["cumulative_logprob"].divergence is not None
    assert everything["cumulative_logprob"].divergence.output == 1


def test_another_prompt_explains_everything_after_it() -> None:
    right = result(
        prompt_token_ids=[1, 3],
        prompt_logprobs=[None, [(3, -1.0, 1)]],
        num_cached_tokens=1,
        outputs=[output(token_ids=[1, 2, 3, 4], text="x")],
    )
    everything = results(result(), right)
    assert everything.pop("prompt_token_ids") == "different"
    assert set(everything) == {"prompt_logprobs", "num_cached_tokens", "token_ids", "text"}
    assert set(everything.values()) == {"follows"}


def _refused(message: str, kind: str = "ValueError") -> cap.Result:
    return cap.Result(
        workload="w", request="r0", error=cap.RequestError(type=kind, message=message)
    )


def test_a_refusal_on_one_side_explains_the_rest() -> None:
    everything = results(_refused("too long"), result())
    assert everything.pop("error") == "different"
    assert "prompt_token_ids" in everything
    assert set(everything.values()) == {"follows"}
    assert results(result(), _refused("too long"))["error"] == "different"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("prompt of 900 tokens", "prompt of 901 tokens", True),
        ("at 0x7f12ab00", "at 0x7f12ab44", True),
        ("request 3f2504e0-4f89-41d3-9a0c-0305e82c3301", "request " + "0" * 8 + "-0000" * 3 + "-" + "1" * 12, True),
        ("from 192.0.2.1:8000", "from 192.0.2.7:9", True),
        ("cmpl-12ab34cd56ef", "cmpl-99ab34cd56ee", True),
        ("temperature -1.5", "temperature -2", True),
        ("too  long\n", "too long", True),
        ("too long", "too short", False),
        ("feedbeef is no number", "deadbeef is no number", False),
        ("top_k must be positive", "top_p must be positive", False),
    ],
)  # fmt: skip
def test_messages_are_compared_by_class(one: str, other: str, same: bool) -> None:
    assert (normalised(one) == normalised(other)) is same
    assert ("error" not in results(_refused(one), _refused(other))) is same


def test_another_type_of_error_differs() -> None:
    assert results(_refused("x"), _refused("x", "RuntimeError")) == {"error": "different"}


TOLERANCE = Tolerance(absolute=0.01)


def test_a_tolerance_is_a_result_of_its_own_and_only_for_its_field() -> None:
    right = of(logprobs=[*FOUR[:3], [(8, -0.755, 1)]])
    left = of(logprobs=FOUR)
    assert results(left, right, logprobs=TOLERANCE) == {"logprobs": "within-tolerance"}
    assert results(left, right, prompt_logprobs=TOLERANCE) == {"logprobs": "different"}
    assert results(left, of(logprobs=[*FOUR[:3], [(8, -0.77, 1)]]), logprobs=TOLERANCE) == {
        "logprobs": "different"
    }


@pytest.mark.parametrize(
    ("left", "right", "agree"),
    [
        # Two near ones change places.
        ([(1, -0.5, 1), (2, -1.0, 2), (3, -1.001, 3)], [(1, -0.5, 1), (3, -1.0, 2), (2, -1.001, 3)], True),
        # The last one is another, and so near the cut that it may be.
        ([(1, -0.5, 1), (2, -1.0, 2)], [(1, -0.5, 1), (3, -1.005, 2)], True),
        # The last one is another, and should have been listed.
        ([(1, -0.5, 1), (2, -1.0, 2)], [(1, -0.5, 1), (3, -1.5, 2)], False),
        # The token taken is another: no tolerance.
        ([(1, -0.5, 1), (2, -0.5, 2)], [(2, -0.5, 1), (1, -0.5, 2)], False),
        # The token taken is far down; that is not where the list was cut.
        ([(9, -7.0, 40), (1, -0.5, 1), (2, -1.0, 2)], [(9, -7.0, 40), (1, -0.5, 1), (3, -3.0, 2)], False),
        ([(1, "nan", 1)], [(1, -0.5, 1)], False),
        ([(1, -0.5, 1)], [(1, "-inf", 1)], False),
        ([(1, -0.5, 1), (2, -1.0, 2)], [(1, -0.5, 1)], False),
    ],
)  # fmt: skip
def test_candidates_within_a_tolerance(left: Any, right: Any, agree: bool) -> None:
    one = of(token_ids=[1], logprobs=[left])
    other = of(token_ids=[1], logprobs=[right])
    expected = "within-tolerance" if agree else "different"
    assert results(one, other, logprobs=TOLERANCE) == {"logprobs": expected}
    assert results(other, one, logprobs=TOLERANCE) == {"logprobs": expected}
    assert results(one, other) == {"logprobs": "different"}


def test_a_cumulative_tolerance_may_count_for_every_token() -> None:
    left, right = of(cumulative_logprob=-2.5), of(cumulative_logprob=-2.53)
    assert results(left, right, cumulative_logprob=TOLERANCE) == {"cumulative_logprob": "different"}
    a_token = Tolerance(absolute=0.01, per_token=True)
    assert results(left, right, cumulative_logprob=a_token) == {
        "cumulative_logprob": "within-tolerance"
    }


def test_the_sign_of_a_zero_is_a_bit_too() -> None:
    zeros = [[(t, 0.0, 1)] for t in (5, 6, 7, 8)]
    other = [*zeros[:3], [(8, -0.0, 1)]]
    assert results(of(logprobs=zeros), of(logprobs=other)) == {"logprobs": "different"}


@pytest.mark.parametrize(
    ("changes", "field", "position"),
    [
        ({"embedding": [0.5, 0.25]}, "embedding", 1),
        ({"token_steps": [0, 1, 3, 3]}, "token_steps", 2),
        ({"preemptions": 2}, "preemptions", None),
    ],
)
def test_what_the_scheduler_did(changes: dict[str, Any], field: str, position: int | None) -> None:
    base = {"embedding": [0.5, 0.75], "token_steps": [0, 1, 2, 3], "preemptions": 1}
    finding = found(result(**base), result(**{**base, **changes}))
    assert list(finding) == [field]
    assert finding[field].result == "different"
    assert finding[field].divergence is not None
    assert finding[field].divergence.position == position
