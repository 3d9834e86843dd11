"""The verdict: differences of the candidate against what two runs of the reference differ in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vllm_ray_compat.parity.compare import Comparison, differences

Verdict = Literal["pass", "fail", "inconclusive"]


def judge(noise: Sequence[Comparison], compared: Sequence[Comparison]) -> Verdict:
    """Judge one topology.

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


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of a whole run: the worst of its parts; of none, ``inconclusive``."""
    for verdict in ("fail", "inconclusive"):
        if verdict in verdicts:
            return verdict
    return "pass" if verdicts else "inconclusive"
