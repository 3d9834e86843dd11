"""What is measured: the metrics by name, with unit and direction, and which of them are claims."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_ray_compat.errors import unknown


@dataclass(frozen=True)
class Metric:
    """A metric, whatever it was measured of.

    Attributes:
        label: for a person.
        unit: of its values.
        higher_is_better: a rate; else a time, or a load.
        is_claim: "no overhead" is claimed of it; the others are told beside.
    """

    label: str
    unit: str
    higher_is_better: bool = False
    is_claim: bool = False

    def loss(self, reference: float, candidate: float) -> float:
        """Return by what factor the candidate is worse: 1.02 is 2 % slower, or less a second."""
        return reference / candidate if self.higher_is_better else candidate / reference


#: The last part of a metric's key -> what it is. The parts before say of what: ``batch8``,
#: ``rate4``, ``rpc.small``.
METRICS = {
    "p50_us": Metric("round trip, p50", "µs", is_claim=True),
    "p90_us": Metric("round trip, p90", "µs"),
    "p99_us": Metric("round trip, p99", "µs"),
    "p99_9_us": Metric("round trip, p99.9", "µs"),
    "per_s": Metric("round trips", "/s", higher_is_better=True, is_claim=True),
    "tokens_per_s": Metric("decode", "tokens/s", higher_is_better=True, is_claim=True),
    "steps_per_s": Metric("decode", "steps/s", higher_is_better=True),
    # Of a batch it is the ITL, but for stages, each of which has a batch of its own.
    "step_p50_us": Metric("decode step, p50", "µs"),
    "requests_per_s": Metric("requests", "/s", higher_is_better=True, is_claim=True),
    "ttft_p50_ms": Metric("TTFT, p50", "ms", is_claim=True),
    "ttft_p99_ms": Metric("TTFT, p99", "ms"),
    "itl_p50_ms": Metric("ITL, p50", "ms", is_claim=True),
    "itl_p99_ms": Metric("ITL, p99", "ms"),
    "cores": Metric("cores used at rest", ""),
    "start_s": Metric("start", "s"),
}
#: Phases of a start: told, never compared (one that takes no time has no ratio).
START = "start"


def metric(key: str) -> Metric:
    """Return what the key of a measured value means.

    Raises:
        UsageError: it is no metric.
    """
    name = key.rpartition(".")[2]
    if name not in METRICS:
        raise unknown("metric", key, METRICS)
    return METRICS[name]


def of_what(key: str) -> str:
    """Return what was measured, without the metric: ``batch8``, ``rpc.small``."""
    return key.rpartition(".")[0]
