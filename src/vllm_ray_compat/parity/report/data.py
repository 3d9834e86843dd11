"""``report.json``: everything a parity run found, as one versioned object."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity.capture import Worker
from vllm_ray_compat.parity.compare import Comparison
from vllm_ray_compat.parity.faults import Fault
from vllm_ray_compat.parity.latency import Latency
from vllm_ray_compat.parity.logprob_gaps import PositionGaps
from vllm_ray_compat.parity.noise import Verdict

SCHEMA = "vllm_ray_compat.report/2"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Timings(_Model):
    """Seconds; None where the arm did not get that far."""

    engine_start_s: float | None = None
    workloads_s: dict[str, float] = {}
    shutdown_s: float | None = None
    total_s: float


class Arm(_Model):
    """One arm: what was asked, what the live engine says ran, and how it went."""

    label: str
    role: Literal["reference", "reference-again", "candidate"]
    backend: str
    topology: str
    profile: str = Field(default="default", description="The suite's engine options in use.")
    expected_executor: str
    executor: str | None = Field(description="Read from the live engine; None: it never lived.")
    executor_read_from: str | None
    provider: str | None
    repairs: list[str] | None = None
    vllm: str | None
    ray: str | None
    torch: str | None
    python: str | None
    dtype: str | None
    async_scheduling: bool | None
    v2_model_runner: bool | None
    workers: list[Worker]
    timings: Timings
    latency: Latency | None = Field(description="None: the arm left no capture to read.")
    capture: str
    log: str
    failure: str | None
    log_tail: list[str]


class TopologyVerdict(_Model):
    """The verdict of one candidate on one topology."""

    topology: str
    reference: str
    candidate: str
    verdict: Verdict
    requests: int
    different: int


class NoiseFloor(_Model):
    """What two runs of the reference arm differ in, for one topology."""

    topology: str
    reference: str
    runs: int
    requests: int
    differences: list[Comparison]


class LogprobGaps(PositionGaps):
    """How far the logprobs of two arms are apart, by token position."""

    topology: str
    reference: str
    candidate: str = Field(description="As in comparisons; the reference 'again': two runs of it.")
    profile: str = "default"


class SuiteWorkload(_Model):
    """A workload that was to run."""

    name: str
    about: str
    requests: int


class KnownDifference(_Model):
    """What a backend cannot do by design, with its source."""

    backend: str
    what: str
    source: str
    effect: str


class Report(_Model):
    """The object in ``report.json``."""

    schema_: str = Field(default=SCHEMA, alias="schema")
    verdict: Verdict
    vllm: str
    suite: str
    workloads: list[SuiteWorkload] = Field(description="Of the suite, in its order.")
    model: str
    engine_core: str
    started_at: str
    took_s: float
    topologies: list[TopologyVerdict]
    arms: list[Arm]
    comparisons: list[Comparison]
    noise_floor: list[NoiseFloor]
    logprob_gaps: list[LogprobGaps]
    known_differences: list[KnownDifference]
    injected_fault: Fault | None
    left_behind: list[str] = Field(description="Shared-memory segments that could not be freed.")
    environment_failure: bool = Field(description="An arm could not run here at all (exit code 3).")

    @property
    def failures(self) -> list[Arm]:
        """The arms that did not run to their end."""
        return [arm for arm in self.arms if arm.failure is not None]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, ``schema`` first."""
        return self.model_dump(mode="json", by_alias=True)


#: Pinned or avoided in every run, so that the comparison is of the executors alone.
KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = (
    KnownDifference(
        backend="legacy",
        what="has no async scheduling",
        source="vLLM v1/executor/abstract.py: Executor.supports_async_scheduling() is False",
        effect="async scheduling is off in every arm",
    ),
    KnownDifference(
        backend="legacy",
        what="is wrong with Model Runner V2 when there are several pipeline stages",
        source="measured on vLLM 0.25.1: wrong tokens in the first batch, then a hang",
        effect="VLLM_USE_V2_MODEL_RUNNER=0 in every arm",
    ),
)
