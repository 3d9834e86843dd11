"""What a benchmark concludes from its passes."""

from __future__ import annotations

import random

import pytest

from vllm_ray_compat.bench.conclude import ALPHA, Verdict, compare, interval

TIME, RATE = "batch8.step_p50_us", "batch8.tokens_per_s"


@pytest.mark.parametrize(
    ("count", "expected"),
    # Ranks of the 95 % interval of a median, as tables of the sign test have them.
    [(5, None), (6, (1, 6)), (9, (2, 8)), (15, (4, 12)), (20, (6, 15)), (25, (8, 18))],
)
def test_interval_of_a_median(count: int, expected: tuple[int, int] | None) -> None:
    shuffled = [float(value) for value in (*range(2, count + 1, 2), *range(1, count + 1, 2))]
    assert interval(shuffled) == expected


def losses(*factors: float, key: str = TIME, margin: float = 0.01) -> Verdict:
    reference = [100.0 + number for number in range(len(factors))]
    candidate = [r / f if key == RATE else r * f for r, f in zip(reference, factors, strict=True)]
    return compare("v2", key, reference, candidate, margin).verdict


@pytest.mark.parametrize("key", [TIME, RATE])
def test_verdicts(key: str) -> None:
    assert losses(*[1.001] * 6, key=key) is Verdict.EQUIVALENT
    assert losses(*[0.9] * 6, key=key) is Verdict.NO_OVERHEAD
    assert losses(*[1.1] * 6, key=key) is Verdict.OVERHEAD
    # A point estimate within the margin proves nothing.
    assert losses(0.9, 1.1, 0.9, 1.1, 1.0, 1.0, key=key) is Verdict.NOT_SHOWN
    assert losses(*[1.0] * 4, key=key) is Verdict.NOT_SHOWN  # 1/16 is more than 5 %
    assert losses(*[1.0] * 5, key=key) is Verdict.EQUIVALENT
    # One outlier of 8 is allowed for (9/256), one of 7 is not (8/128).
    assert losses(*[1.0] * 7, 3.0, key=key) is Verdict.EQUIVALENT
    assert losses(*[1.0] * 6, 3.0, key=key) is Verdict.NOT_SHOWN


def test_a_loss_as_large_as_the_margin_is_neither() -> None:
    assert losses(*[1.5] * 20, margin=0.5) is Verdict.NOT_SHOWN


def test_what_is_shown_within() -> None:
    reference = [1.0] * 8
    found = compare("v2", TIME, reference, [1.02, 1.0, 0.98, 1.03, 1.01, 1.5, 0.99, 1.0], 0.01)
    assert found.verdict is Verdict.NOT_SHOWN
    # Of 8, the second largest bounds the median with 9/256.
    assert found.shown_within == pytest.approx(0.03)
    assert compare("v2", TIME, reference, found.ratios, 0.0301).verdict.proves_no_overhead
    assert not compare("v2", TIME, reference, found.ratios, 0.0299).verdict.proves_no_overhead
    assert compare("v2", TIME, reference[:4], found.ratios[:4], 0.01).shown_within is None
    assert found.ratio == pytest.approx(1.005)
    assert found.interval == pytest.approx((0.98, 1.5))


def test_how_often_it_is_wrong() -> None:
    """With a true loss of exactly the margin, "no overhead" is claimed in at most 5 % of runs."""
    draw = random.Random(1)
    runs, wrong, covered = 2000, 0, 0
    for _ in range(runs):
        values = [1.01 * draw.lognormvariate(0, 0.2) for _ in range(12)]
        found = compare("v2", TIME, [1.0] * 12, values, 0.01)
        wrong += found.verdict.proves_no_overhead
        assert found.interval is not None
        covered += found.interval[0] <= 1.01 <= found.interval[1]
    assert wrong / runs <= ALPHA
    assert covered / runs >= 0.95
