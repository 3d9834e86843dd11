"""The verdict: differences of the candidate against what runs of the reference differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vllm_ray_compat.parity.compare import Compared, Comparison, Total, differences
from vllm_ray_compat.parity.statistics import Statistics, statistics
from vllm_ray_compat.parity.stored import Key

Verdict = Literal["pass", "fail", "inconclusive"]

#: What a workload's requests came to, the worst of them.
State = Literal["equal", "within tolerance", "known", "different", "noise", "not compared"]


@dataclass(frozen=True)
class Judged:
    """The verdict of a workload, and how many of its requests came out how.

    Attributes:
        verdict: of the workload.
        requests: that were compared.
        different: requests with a field that differs.
        known: of the others, those with a field that differs as declared.
        within_tolerance: of the rest, those with a field that is equal only by a tolerance.
        noisy: requests that the reference answers differently from run to run.
        at_least: there may be more of all these than was kept one by one.
    """

    verdict: Verdict
    requests: int = 0
    different: int = 0
    known: int = 0
    within_tolerance: int = 0
    noisy: int = 0
    at_least: bool = False

    @property
    def state(self) -> State:
        """What the requests came to."""
        if not self.requests:
            return "not compared"
        if self.verdict != "pass":
            return "different" if self.verdict == "fail" else "noise"
        if self.known:
            return "known"
        return "within tolerance" if self.within_tolerance else "equal"

    @property
    def label(self) -> str:
        """The same in a word or two, with the number of requests."""
        if self.state == "not compared":
            return self.state
        if self.state == "noise":
            return f"noise in {self.noisy} of {self.requests}"
        least = "at least " if self.at_least else ""
        if self.state == "different":
            return f"{least}{self.different} of {self.requests} differ"
        accepted = describe_accepted(self.requests, self.known, self.within_tolerance)
        return f"{least}{accepted}" if accepted else f"{self.requests} equal"


def describe_accepted(requests: int, known: int, within_tolerance: int) -> str:
    """Return how many of *requests* are not equal and yet no difference; nothing if all are."""
    counts = [(known, "known"), (within_tolerance, "within tolerance")]
    return ", ".join(f"{count} of {requests} {how}" for count, how in counts if count)


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
) -> Judged:
    """Judge a workload as :func:`judge`, by what a report keeps of it.

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
        verdict: Verdict = "fail"  # more than are kept one by one
    elif asked and not kept:  # not kept one by one
        verdict = "inconclusive" if noise else "pass"
    else:
        verdict = judge(noise, kept)
    others = [c for c in kept if c.result != "equal"]
    counted = sum(t.different + t.follows + t.within_tolerance + t.known + t.noted for t in totals)
    cut = totals if len(others) < counted else ()
    different, known, within = _requests_by_result(others)
    return Judged(
        verdict,
        requests=asked,
        # Of what is not kept one by one, at least as many as one field alone has.
        different=max(different, *(t.different for t in cut), 0),
        known=max(known, *(t.known for t in cut), 0),
        within_tolerance=max(within, *(t.within_tolerance for t in cut), 0),
        noisy=len({c.request for c in noise}),
        at_least=bool(cut),
    )


def _requests_by_result(kept: Sequence[Comparison]) -> tuple[int, int, int]:
    """Return how many requests differ, are known and are within tolerance; each counts once."""
    counts = []
    counted: set[tuple[str, str]] = set()
    for result in ("different", "known", "within-tolerance"):
        found = {(c.workload, c.request) for c in kept if c.result == result} - counted
        counted |= found
        counts.append(len(found))
    return counts[0], counts[1], counts[2]


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
