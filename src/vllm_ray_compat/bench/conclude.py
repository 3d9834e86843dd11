"""From passes to ratios: their median with an interval, and the tests of "no overhead".

In each pass the candidate's value is set against the reference's of the same pass, as a loss: the
factor by which the candidate is worse. Over the passes nothing is assumed of how losses are spread:
how many of n lie below their true median is binomial(n, 1/2), which gives the interval (order
statistics) and the tests (sign tests).

Two one-sided tests, each at :data:`ALPHA` (Schuirmann 1987): that the loss is less than the margin
("no overhead"), and that the gain is. With both the two are equivalent within the margin. A point
estimate within the margin proves neither.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from enum import Enum

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.bench.figure import Figure
from vllm_ray_compat.bench.metrics import metric

ALPHA = 0.05
#: The fewest passes with which a test can show anything: 1/2**5 is less than ALPHA.
FEWEST_PASSES = 5


class Verdict(str, Enum):
    """What the passes show of the median loss."""

    EQUIVALENT = "equivalent"
    NO_OVERHEAD = "no overhead"
    OVERHEAD = "overhead"
    NOT_SHOWN = "not shown"

    @property
    def proves_no_overhead(self) -> bool:
        """Whether it is shown that the candidate loses less than the margin."""
        return self in (Verdict.EQUIVALENT, Verdict.NO_OVERHEAD)


class Comparison(BaseModel):
    """One metric of a candidate against the reference."""

    model_config = ConfigDict(extra="forbid")

    candidate: str
    metric: str = Field(description="batch8.tokens_per_s, rpc.small.p50_us, …")
    reference_value: Figure = Field(description="Median over the passes.")
    candidate_value: Figure
    ratio: Figure = Field(description="Candidate / reference: median of the passes' ratios.")
    interval: tuple[Figure, Figure] | None = Field(
        description="In which the median ratio lies, at 95 %; None: fewer than 6 passes."
    )
    p_no_overhead: Figure = Field(description="Of the test that the loss is below the margin.")
    p_no_gain: Figure = Field(description="Of the test that the gain is below the margin.")
    p_overhead: Figure = Field(description="Of the test that the loss is above the margin.")
    shown_within: Figure | None = Field(
        description="The smallest margin for which no overhead is shown; below 0: a gain is shown. "
        "None: no margin, with so few passes."
    )
    verdict: Verdict
    ratios: list[Figure] = Field(description="Of all passes, in order.")

    @property
    def is_claim(self) -> bool:
        """Whether "no overhead" is claimed of the metric."""
        return metric(self.metric).is_claim

    def loss(self, ratio: float) -> float:
        """Return what a ratio of this metric is as a loss."""
        return metric(self.metric).loss(1.0, ratio)

    @property
    def loss_interval(self) -> tuple[float, float] | None:
        """The interval of the loss, rising."""
        if self.interval is None:
            return None
        low, high = sorted(map(self.loss, self.interval))
        return low, high


def claims(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Return those of which "no overhead" is claimed."""
    return [one for one in comparisons if one.is_claim]


def compare(
    candidate: str,
    key: str,
    reference_values: Sequence[float],
    candidate_values: Sequence[float],
    margin: float,
) -> Comparison:
    """Compare the values of a metric, pass by pass.

    Args:
        candidate: its name.
        key: of the metric.
        reference_values: one of each pass, above 0.
        candidate_values: of the same passes.
        margin: the loss that counts as none: 0.01 is 1 %.
    """
    pairs = list(zip(reference_values, candidate_values, strict=True))
    ratios = [mine / theirs for theirs, mine in pairs]
    losses = [metric(key).loss(theirs, mine) for theirs, mine in pairs]
    bound = _bound_above(losses)
    p_no_overhead = _sign_test(sum(loss < 1 + margin for loss in losses), len(losses))
    p_no_gain = _sign_test(sum(1 / loss < 1 + margin for loss in losses), len(losses))
    p_overhead = _sign_test(sum(loss > 1 + margin for loss in losses), len(losses))
    return Comparison(
        candidate=candidate,
        metric=key,
        reference_value=statistics.median(reference_values),
        candidate_value=statistics.median(candidate_values),
        ratio=statistics.median(ratios),
        interval=interval(ratios),
        p_no_overhead=p_no_overhead,
        p_no_gain=p_no_gain,
        p_overhead=p_overhead,
        shown_within=None if bound is None else bound - 1,
        verdict=_verdict(p_no_overhead, p_no_gain, p_overhead),
        ratios=ratios,
    )


def _verdict(p_no_overhead: float, p_no_gain: float, p_overhead: float) -> Verdict:
    if p_overhead <= ALPHA:
        return Verdict.OVERHEAD
    if p_no_overhead > ALPHA:
        return Verdict.NOT_SHOWN
    return Verdict.EQUIVALENT if p_no_gain <= ALPHA else Verdict.NO_OVERHEAD


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval in which the median lies; None for too few values (95 %: under six)."""
    k = _outside(len(values), (1 - confidence) / 2)
    if k == 0:
        return None
    ordered = sorted(values)
    return ordered[k - 1], ordered[len(values) - k]


def _bound_above(values: Sequence[float]) -> float | None:
    """Return what the median is below, with a chance of error of ALPHA."""
    k = _outside(len(values), ALPHA)
    return sorted(values)[len(values) - k] if k else None


def _outside(n: int, chance: float) -> int:
    """Return the largest k for which fewer than k of n below the median has at most this chance."""
    below, k = 0.0, 0
    while (below := below + math.comb(n, k) / 2**n) <= chance:
        k += 1
    return k


def _sign_test(successes: int, n: int) -> float:
    """Return the chance of at least so many successes of n, were the median on the other side."""
    ways = sum(math.comb(n, i) for i in range(successes, n + 1))
    return float(ways / 2**n)
