"""The verdict: differences of the candidate against what runs of the reference differ in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vllm_ray_compat.parity.compare import Compared, Comparison, Total, differences
from vllm_ray_compat.parity.statistics import Statistics, statistics
from vllm_ray_compat.parity.stored import Key

Verdict = Literal["pass", "fail", "inconclusive"]


def judge(noise: Sequence[Comparison], compared: Sequence[Comparison]) -> Verdict:
    """Judge one topology by its comparisons.

    A difference in a request that the reference itself answers differently from run to run says
    nothing about the candidate; any other difference is the candidate's.

    Args:
        noise: reference against reference (A/A).
        compared: reference against candidate (A/B).

    Returns:
        ``fail`` when a difference lies outside the noise; else ``inconclusive`` when there is
        noise at all, because an exact comparison then proves nothing about those requests; else
        ``pass``.
    """
    if not compared:
        return "inconclusive"
    noisy = {(c.workload, c.request) for c in differences(noise)}
    if any((c.workload, c.request) not in noisy for c in differences(compared)):
        return "fail"
    return "inconclusive" if noisy else "pass"


def judge_kept(
    noise: Sequence[Comparison], kept: Sequence[Comparison], totals: Sequence[Total]
) -> tuple[Verdict, int]:
    """Judge a workload as :func:`judge`, by what a report keeps of it; and count its requests.

    Args:
        noise: reference against reference.
        kept: the comparisons that were kept one by one; of many requests not all are.
        totals: count all of them.
    """
    asked = sum(
        t.equal + t.different + t.follows + t.within_tolerance + t.known + t.noted
        for t in totals
        if t.field == "present"
    )
    asked = max(asked, len({c.request for c in kept}))
    if sum(t.different for t in totals) > len(differences(kept)):
        return "fail", asked  # more than are kept one by one
    if asked and not kept:  # all equal, and not kept one by one
        return "inconclusive" if noise else "pass", asked
    return judge(noise, kept), asked


def judge_pairs(noise: Sequence[Compared], compared: Sequence[Compared]) -> Verdict:
    """Judge as :func:`judge`, by what is kept of whole captures.

    An arm that was interrupted, or a request that was not compared, leaves ``inconclusive`` at
    best. So does a reference that differs from itself in more requests than are kept by name.

    Args:
        noise: reference against reference, each further run and profile of it.
        compared: reference against candidate, each profile of it.
    """
    if not any(pair.requests for pair in compared):
        return "inconclusive"
    noisy: set[Key] = set().union(*(pair.differing for pair in noise))
    unnamed_noise = any(pair.unnamed for pair in noise)
    outside = any(pair.unnamed or not pair.differing <= noisy for pair in compared)
    if outside and not unnamed_noise:
        return "fail"
    unsure = noisy or unnamed_noise or any(p.partial or p.not_compared for p in compared)
    return "inconclusive" if unsure else "pass"


def statistics_of(runs: int, noise: Sequence[Compared], compared: Sequence[Compared]) -> Statistics:
    """Return how large a comparison was, and what it would have shown.

    Args:
        runs: of the reference.
        noise: see :func:`judge_pairs`.
        compared: see :func:`judge_pairs`.
    """
    return statistics(
        requests=sum(pair.requests for pair in compared),
        tokens=sum(pair.tokens for pair in compared),
        different=sum(pair.different for pair in compared),
        noise_runs=runs,
        noise_requests=sum(pair.requests for pair in noise),
        noise_different=sum(pair.different for pair in noise),
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a whole run: the worst of its parts; of none, ``inconclusive``."""
    for verdict in ("fail", "inconclusive"):
        if verdict in verdicts:
            return verdict
    return "pass" if verdicts else "inconclusive"
