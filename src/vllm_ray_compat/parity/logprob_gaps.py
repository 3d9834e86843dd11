"""How far the logprobs of two arms are apart, by token position.

Two logprobs are compared when both arms give one for the same token at the same position of the
same completion, up to and including the first position where the completions choose different
tokens: there both still follow the same text, after it they do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity.capture import LogprobEntry, Output, Result

_MOST_VALUES = 2048

_Key = tuple[str, str]


class Place(BaseModel):
    """A position of a completion (output and position count from 0)."""

    model_config = ConfigDict(extra="forbid")

    workload: str
    request: str
    output: int
    position: int


class PositionGaps(BaseModel):
    """The largest absolute differences of logprobs (nats)."""

    model_config = ConfigDict(extra="forbid")

    compared: int = Field(description="Pairs of finite logprobs that were compared.")
    not_finite: int = Field(
        description="Pairs of which one is finite and the other is not, or both are different "
        "values that are not (nan, inf, -inf). They have no part in the differences."
    )
    largest: float | None = Field(description="None: nothing was compared.")
    largest_at: Place | None = Field(description="The first place of the largest; None: it is 0.")
    positions_per_value: int = Field(
        ge=1, description="How many token positions each of the values stands for; a power of 2."
    )
    by_position: list[float | None] = Field(
        max_length=_MOST_VALUES,
        description="The largest difference at each position, from 0; None: nothing compared.",
    )


class _Gatherer:
    """Keeps the largest gap of each position, in at most ``_MOST_VALUES`` numbers."""

    def __init__(self) -> None:
        self.width = 1
        self.values: list[float | None] = []
        self.compared = self.not_finite = 0
        self.largest: float | None = None
        self.largest_at: Place | None = None

    def add(self, gap: float, result: Result, output: int, position: int) -> None:
        while position // self.width >= _MOST_VALUES:
            halved = zip_longest(self.values[::2], self.values[1::2])
            self.values = [_larger(a, b) for a, b in halved]
            self.width *= 2
        index = position // self.width
        if index >= len(self.values):
            self.values += [None] * (index + 1 - len(self.values))
        self.values[index] = _larger(self.values[index], gap)
        if self.largest is None or gap > self.largest:
            self.largest = gap
            if gap > 0:
                self.largest_at = Place(
                    workload=result.workload,
                    request=result.request,
                    output=output,
                    position=position,
                )


def logprob_gaps(reference: Iterable[Result], candidate: Iterable[Result]) -> PositionGaps:
    """Compare the logprobs of two captures' results, which may be streams.

    Results need not come in the same order; those read before their counterpart are kept until
    it comes, so memory stays small where the orders are alike.
    """
    gathered = _Gatherer()
    for one, other in _pairs(reference, candidate):
        for a, b in zip(one.outputs, other.outputs, strict=False):
            _add_output(gathered, one, a, b)
    return PositionGaps(
        compared=gathered.compared,
        not_finite=gathered.not_finite,
        largest=gathered.largest,
        largest_at=gathered.largest_at,
        positions_per_value=gathered.width,
        by_position=gathered.values,
    )


def _pairs(left: Iterable[Result], right: Iterable[Result]) -> Iterator[tuple[Result, Result]]:
    waiting: tuple[dict[_Key, Result], dict[_Key, Result]] = ({}, {})
    for both in zip_longest(left, right):
        for side, result in enumerate(both):
            if result is None:
                continue
            key = (result.workload, result.request)
            counterpart = waiting[1 - side].pop(key, None)
            if counterpart is None:
                waiting[side][key] = result
            else:
                yield (counterpart, result) if side else (result, counterpart)


def _add_output(gathered: _Gatherer, result: Result, a: Output, b: Output) -> None:
    if a.logprobs is None or b.logprobs is None:
        return
    for position, (left, right) in enumerate(zip(a.logprobs, b.logprobs, strict=False)):
        for value, other in _of_the_same_token(left or [], right or []):
            if not (isinstance(value, float) and isinstance(other, float)):
                gathered.not_finite += value != other  # one has a name: nan, inf or -inf
            elif math.isfinite(gap := abs(value - other)):
                gathered.compared += 1
                gathered.add(gap, result, a.index, position)
        if a.token_ids[position : position + 1] != b.token_ids[position : position + 1]:
            return


def _of_the_same_token(
    left: list[LogprobEntry], right: list[LogprobEntry]
) -> Iterator[tuple[float | str, float | str]]:
    ours, theirs = ({token: value for token, value, _ in side} for side in (left, right))
    return ((value, theirs[token]) for token, value in ours.items() if token in theirs)


def _larger(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)
