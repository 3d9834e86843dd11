"""Latencies of an arm as distributions: time to first token, and time between tokens.

They are read from ``token_times_s`` of the results, one result at a time. What is kept of any
number of latencies is at most 512 KiB: up to 65,536 the distribution is exact, beyond that the
percentiles are those of a uniform random sample of that size (minimum, maximum and number stay
exact).
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity.capture import Result

_MOST_KEPT = 65_536
_MOST_QUANTILES = 101


class Distribution(BaseModel):
    """A distribution of latencies, in seconds."""

    model_config = ConfigDict(extra="forbid")

    n: int = Field(ge=1, description="How many latencies there were.")
    min: float
    p50: float
    p90: float
    p99: float
    max: float
    quantiles: list[float] = Field(
        min_length=1,
        description="Evenly spaced quantiles from the minimum to the maximum, rising: of few "
        "latencies every one, else 101.",
    )
    exact: bool = Field(description="False: the percentiles are those of a random sample.")


class Latency(BaseModel):
    """The latencies of one arm; None where none were measured."""

    model_config = ConfigDict(extra="forbid")

    ttft_s: Distribution | None = Field(
        description="From handing a workload's batch to the engine until a request's first token."
    )
    itl_s: Distribution | None = Field(
        description="Between consecutive tokens of a request; tokens of one step are 0 apart."
    )


class Gatherer:
    """Takes latencies one by one and keeps a bounded, uniform sample of them (algorithm R)."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._kept = array("d")
        self._n = 0
        self._min = self._max = 0.0
        self._random = random.Random(0)  # the same captures give the same report

    def add(self, seconds: float) -> None:
        """Take one latency."""
        if self._n == 0:
            self._min = self._max = seconds
        self._min, self._max = min(self._min, seconds), max(self._max, seconds)
        if len(self._kept) < self._most:
            self._kept.append(seconds)
        elif (place := self._random.randrange(self._n + 1)) < self._most:
            self._kept[place] = seconds
        self._n += 1

    def distribution(self) -> Distribution | None:
        """Return what was gathered; None when that is nothing."""
        if self._n == 0:
            return None
        kept = sorted(self._kept)
        exact = self._n == len(kept)
        points = min(len(kept), _MOST_QUANTILES)
        quantiles = [_quantile(kept, i / max(points - 1, 1)) for i in range(points)]
        quantiles[0], quantiles[-1] = self._min, self._max
        return Distribution(
            n=self._n,
            min=self._min,
            p50=_quantile(kept, 0.5),
            p90=_quantile(kept, 0.9),
            p99=_quantile(kept, 0.99),
            max=self._max,
            quantiles=quantiles,
            exact=exact,
        )


def latency_of(results: Iterable[Result]) -> Latency:
    """Return the latencies of *results*, which may be a stream.

    Requests without token times (refused, or not measured) have no part in it.
    """
    first, between = Gatherer(), Gatherer()
    for result in results:
        times = result.token_times_s
        if not times:
            continue
        first.add(times[0])
        for earlier, later in pairwise(times):
            between.add(later - earlier)
    return Latency(ttft_s=first.distribution(), itl_s=between.distribution())


def _quantile(rising: list[float], level: float) -> float:
    """Return the quantile of sorted values, linear between neighbours (*level* from 0 to 1)."""
    place = level * (len(rising) - 1)
    below = int(place)
    above = min(below + 1, len(rising) - 1)
    return rising[below] + (rising[above] - rising[below]) * (place - below)
