"""What is told of a series of latencies: its quantiles, and how many there were a second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

#: Below so many calls the 99.9th percentile would be the slowest call under another name.
CALLS_FOR_P99_9 = 1000


def figures(seconds: Sequence[float]) -> dict[str, float]:
    """Return the figures of calls made one after the other.

    Quantiles lie within what was measured (``inclusive``): a p99 of few calls is at most the
    slowest of them.

    Args:
        seconds: what each call took.

    Returns:
        ``p50_us``, ``p90_us``, ``p99_us`` and, of a thousand calls or more, ``p99_9_us`` in
        microseconds; ``per_s``, calls a second.

    Raises:
        ValueError: fewer than two calls.
    """
    if len(seconds) < 2:
        raise ValueError(f"Quantiles need two calls or more, not {len(seconds)}.")
    steps = statistics.quantiles(seconds, n=1000, method="inclusive")
    found = {"p50_us": steps[499] * 1e6, "p90_us": steps[899] * 1e6, "p99_us": steps[989] * 1e6}
    if len(seconds) >= CALLS_FOR_P99_9:
        found["p99_9_us"] = steps[998] * 1e6
    return {**found, "per_s": len(seconds) / sum(seconds)}
