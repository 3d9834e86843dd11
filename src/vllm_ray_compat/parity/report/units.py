"""Latencies and logprob differences as a person reads them."""

from __future__ import annotations

from vllm_ray_compat.parity.latency import Distribution


def milliseconds(seconds: float | None) -> str:
    """Return seconds as milliseconds with three significant digits."""
    return "–" if seconds is None else f"{_three_digits(seconds * 1000)} ms"


def median(distribution: Distribution | None) -> str:
    """Return the median of a distribution in milliseconds."""
    return milliseconds(None if distribution is None else distribution.p50)


def nats(gap: float | None) -> str:
    """Return a difference of logprobs, which may be as small as one bit."""
    return "–" if gap is None else ("0" if gap == 0 else f"{gap:.2g}")


def seconds(value: float | None) -> str:
    """Return a duration in seconds, one decimal."""
    return "–" if value is None else f"{value:.1f} s"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = 2 if abs(value) < 10 else (1 if abs(value) < 100 else 0)
    return f"{value:.{decimals}f}"
