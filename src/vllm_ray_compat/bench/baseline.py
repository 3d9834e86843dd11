"""A result against an earlier one: a regression is a loss beyond both intervals."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_ray_compat.bench.conclude import Comparison, claims
from vllm_ray_compat.bench.result import Bench
from vllm_ray_compat.bench.tables import interval_text
from vllm_ray_compat.errors import UsageError


@dataclass(frozen=True)
class Regression:
    """A claimed metric whose loss is larger than the baseline's, with certainty."""

    topology: str
    now: Comparison
    then: Comparison

    def __str__(self) -> str:
        return (
            f"{self.topology} {self.now.candidate} {self.now.metric}: ratio {self.now.ratio:.3f} "
            f"({interval_text(self.now)}), in the baseline {self.then.ratio:.3f} "
            f"({interval_text(self.then)})"
        )


@dataclass(frozen=True)
class Against:
    """What a comparison with a baseline found."""

    regressions: list[Regression]
    compared: int
    remarks: list[str]


def against(bench: Bench, baseline: Bench) -> Against:
    """Compare the ratios of *bench* with those of *baseline*.

    Ratios, because they hold on another day of the same machine, where times do not. Only claimed
    metrics, and only where both have an interval.

    Raises:
        UsageError: the two are not of the same kind, or have nothing in common.
    """
    if bench.kind != baseline.kind:
        raise UsageError(
            f"The baseline is one of `bench {baseline.kind}`, this is `bench {bench.kind}`."
        )
    earlier, current = _claims(baseline), _claims(bench)
    found, compared, remarks = [], 0, []
    for place, now in current.items():
        then = earlier.get(place)
        if then is None:
            remarks.append(f"Not in the baseline: {' '.join(place)}.")
        elif now.loss_interval is None or then.loss_interval is None:
            remarks.append(f"No interval, for want of passes: {' '.join(place)}.")
        else:
            compared += 1
            if now.loss_interval[0] > then.loss_interval[1]:
                found.append(Regression(place[0], now, then))
    remarks += [f"Not measured now: {' '.join(p)}." for p in earlier if p not in current]
    if compared == 0:
        raise UsageError(
            "The baseline and this run have no metric with an interval in common, so nothing was "
            "compared. Run both with the same topologies, measures and backends, and with six or "
            "more passes."
        )
    for what in ("processor", "cores", "gpus"):
        mine, theirs = getattr(bench.machine, what), getattr(baseline.machine, what)
        if mine != theirs:
            remarks.append(f"Another machine: {what} {mine}, in the baseline {theirs}.")
    for what in ("engines", "engine_core", "engine_args"):
        mine, theirs = getattr(bench, what), getattr(baseline, what)
        if mine != theirs:
            remarks.append(f"Measured in another way: {what} {mine}, in the baseline {theirs}.")
    return Against(found, compared, remarks)


def _claims(bench: Bench) -> dict[tuple[str, str, str], Comparison]:
    return {
        (topology, one.candidate, one.metric): one
        for topology, comparisons in bench.comparisons.items()
        for one in claims(comparisons)
    }
