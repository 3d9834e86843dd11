"""What benchmark_executors.py concludes from its rounds: ratios, intervals, verdicts."""

from __future__ import annotations

import math
import statistics
from typing import Any

#: What is measured -> its name, and the budget of candidate / reference: at least, or at most.
THROUGHPUT, LATENCY = 0.99, 1.05
METRICS = {
    "rpc_p50_us": ("round trip, p50", "µs", LATENCY),
    "rpc_per_s": ("round trips", "/s", THROUGHPUT),
    "step_p50_us": ("decode step, p50", "µs", LATENCY),
    "decode_tokens_per_s": ("decode", "tokens/s", THROUGHPUT),
}


def interval(values: list[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the interval in which the median lies; None for fewer than six values.

    From order statistics: how many of n values lie below their true median is binomial(n, 1/2).
    """
    n = len(values)
    below, k = 0.0, 0
    while (below := below + math.comb(n, k) / 2**n) <= (1 - confidence) / 2:
        k += 1
    if k == 0:
        return None
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]


def verdict(middle: float, limits: tuple[float, float] | None, budget: float) -> str:
    """Say whether a ratio holds its *budget*, and how surely."""

    def within(ratio: float) -> bool:
        return ratio <= budget if budget > 1 else ratio >= budget

    ends = {within(ratio) for ratio in limits or ()}
    if ends == {True}:
        return "holds"
    if ends == {False}:
        return "BROKEN"
    return "holds by the median" if within(middle) else "missed by the median"


def conclude(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Turn the rounds into a ratio for each metric, with its interval and verdict."""
    found = {}
    for metric, (_, _, budget) in METRICS.items():
        ratios = [one["candidate"][metric] / one["reference"][metric] for one in rounds]
        middle, limits = statistics.median(ratios), interval(ratios)
        found[metric] = {
            "reference": statistics.median(one["reference"][metric] for one in rounds),
            "candidate": statistics.median(one["candidate"][metric] for one in rounds),
            "ratio": middle,
            "interval": limits,
            "budget": budget,
            "verdict": verdict(middle, limits, budget),
            "ratios": ratios,
        }
    return found


def table(result: dict[str, Any], reference: str, candidate: str) -> str:
    """Return *result* as lines of text."""
    arms = result["arms"]
    rows = ["", "reference", "candidate", "", "ratio", "95 % interval", "budget", ""]
    lines = [
        f"vLLM {arms['reference']['vllm']}, {result['topology']}, {result['rounds']} rounds",
        *(
            f"{k}: {v}, {arms[k]['executor']}"
            for k, v in (("reference", reference), ("candidate", candidate))
        ),
        _row(rows),
    ]
    for metric, (name, unit, budget) in METRICS.items():
        one = result["metrics"][metric]
        limits = "none" if one["interval"] is None else "{:.3f} – {:.3f}".format(*one["interval"])
        cells = [name, f"{one['reference']:.1f}", f"{one['candidate']:.1f}", unit]
        cells += [f"{one['ratio']:.3f}", limits, f"{'≤' if budget > 1 else '≥'} {budget:.2f}"]
        lines.append(_row([*cells, one["verdict"]]))
    for name, used in result["cores_used_at_rest"].items():
        lines.append(
            f"{name} at rest used {used['median']:.3f} cores (at most {used['max']:.3f}) while the "
            "other was measured"
        )
    if result["turns_begun_without_rest"]:
        lines.append(f"{result['turns_begun_without_rest']} turns began with an engine still busy")
    if result["autogroup"]:
        lines.append(
            "Linux shares the cores between sessions here (kernel.sched_autogroup_enabled=1). The "
            "workers of mp are in their driver's, those of Ray in another: on few cores this is "
            "measured, too. Without it: sysctl kernel.sched_autogroup_enabled=0"
        )
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    name, reference, candidate, unit, ratio, limits, budget, said = cells
    left = f"{name:<17}{reference:>10}{candidate:>11} {unit:<9}"
    return f"{left}{ratio:>6}{limits:>17}{budget:>9}  {said}".rstrip()
