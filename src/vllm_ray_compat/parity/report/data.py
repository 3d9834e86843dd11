"""``report.json``: everything a parity run found, as one versioned object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vllm_ray_compat.parity.capture import NotRun, Worker
from vllm_ray_compat.parity.compare import Compared, Comparison, Total, differences
from vllm_ray_compat.parity.engines import EngineDifference
from vllm_ray_compat.parity.faults import Fault
from vllm_ray_compat.parity.known import DeclaredDifference
from vllm_ray_compat.parity.latency import Latency, latency_of
from vllm_ray_compat.parity.logprob_gaps import PositionGaps, logprob_gaps
from vllm_ray_compat.parity.noise import Verdict
from vllm_ray_compat.parity.past import Forced
from vllm_ray_compat.parity.statistics import Statistics
from vllm_ray_compat.parity.stored import StoredCapture
from vllm_ray_compat.parity.tolerance import Declared
from vllm_ray_compat.parity.trace import StepDivergence
from vllm_ray_compat.parity.worker_environment import EnvironmentDifference

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
    name: str = Field(default="", description="What comparisons call it. Default: its backend.")
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

    @model_validator(mode="after")
    def _has_a_name(self) -> Arm:
        self.name = self.name or self.backend
        return self


class TopologyVerdict(_Model):
    """The verdict of one candidate on one topology."""

    topology: str
    reference: str
    candidate: str
    verdict: Verdict
    requests: int
    different: int
    within_tolerance: int = Field(default=0, description="Requests equal only by a tolerance.")
    known: int = Field(
        default=0, description="Requests that differ in nothing but declared differences."
    )
    not_compared: int = Field(
        default=0,
        description="Requests that an interrupted arm did not get to, or of an engine profile that "
        "only one of two folders has.",
    )
    partial: bool = Field(default=False, description="An arm did not get to its end.")
    not_run: list[str] = Field(
        default=[], description="Workloads left out here; the report's not_run says why."
    )
    statistics: Statistics | None = None


class StepDifference(_Model):
    """Where two step traces part; ``divergence`` is None where they are the same."""

    topology: str
    candidate: str
    profile: str
    divergence: StepDivergence | None


class NoiseFloor(_Model):
    """What runs of the reference arm differ in from the first one, for one topology."""

    topology: str
    reference: str
    runs: int
    requests: int
    differences: list[Comparison]
    within_tolerance: int = Field(
        default=0, description="Answers of the further runs that are equal only by a tolerance."
    )


class LogprobGaps(PositionGaps):
    """How far the logprobs of two arms are apart, by token position."""

    topology: str
    reference: str
    candidate: str = Field(description="As in comparisons; the reference 'again': two runs of it.")
    profile: str = "default"


class SuiteWorkload(_Model):
    """A workload that was to run; one that no arm could run is in ``not_run`` instead."""

    name: str
    about: str
    requests: int


class KnownDifference(_Model):
    """What a backend cannot do by design, with its source."""

    backend: str
    what: str
    source: str
    effect: str
    workload: str | None = None
    request: str | None = None
    field: str | None = None
    seen: int | None = Field(
        default=None, description="Differences that were this one. None: not one to be counted."
    )


class Report(_Model):
    """The object in ``report.json``."""

    schema_: str = Field(default=SCHEMA, alias="schema")
    verdict: Verdict
    vllm: str
    suite: str
    workloads: list[SuiteWorkload] = Field(description="Of the suite, in its order.")
    not_run: list[NotRun] = Field(
        default=[], description="Workloads of the suite that were left out, and why."
    )
    model: str
    engine_core: str
    started_at: str
    took_s: float
    topologies: list[TopologyVerdict]
    arms: list[Arm]
    comparisons: list[Comparison] = Field(
        description="Up to 5,000 equal and 2,000 other ones of each pair of arms; totals has all."
    )
    totals: list[Total] = []
    equal_left_out: int = Field(default=0, description="Equal comparisons beyond that bound.")
    others_left_out: int = Field(default=0, description="Other comparisons beyond that bound.")
    placement: list[Comparison] = Field(
        default=[], description="Ranks placed otherwise; 'noted' ones are not judged."
    )
    environment_differences: list[EnvironmentDifference] = Field(
        default=[], description="Variables that differ between workers. Told, not judged."
    )
    engine_differences: list[EngineDifference] = []
    tolerances: list[Declared] = Field(default=[], description="All in force; others are exact.")
    noise_floor: list[NoiseFloor]
    logprob_gaps: list[LogprobGaps]
    steps: list[StepDifference] = Field(
        default=[], description="Where the traces of an arm and its reference part (--trace)."
    )
    forced: list[Forced] = Field(
        default=[], description="Diverged workloads once more, along the reference's tokens."
    )
    not_forced: list[str] = Field(default=[], description="Why some could not be.")
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
        effect="async scheduling is off in every arm, unless a workload or the caller asks for it",
    ),
    KnownDifference(
        backend="legacy",
        what="is wrong with Model Runner V2 when there are several pipeline stages",
        source="measured on vLLM 0.25.1: wrong tokens in the first batch, then a hang",
        effect="VLLM_USE_V2_MODEL_RUNNER=0 in every arm, unless the shell sets it",
    ),
    KnownDifference(
        backend="legacy",
        what="takes no EC connector when there are several workers",
        source="vllm#49585",
        effect="no workload has one",
    ),
)


#: What an arm's engine says of itself, as its capture and the report call it.
_OF_ENGINE = (
    *("executor", "executor_read_from", "provider", "repairs", "vllm", "ray", "torch", "python"),
    *("dtype", "async_scheduling", "v2_model_runner"),
)


def arm_of(capture: StoredCapture | None, /, *, total_s: float, **given: Any) -> Arm:
    """Return an arm with what its capture says of it.

    Args:
        capture: None where the arm left none that can be read.
        total_s: seconds that the arm took.
        given: the other fields.
    """
    engine = capture.engine if capture else None
    end = capture.end if capture else None
    of_engine: dict[str, Any] = {name: getattr(engine, name, None) for name in _OF_ENGINE}
    return Arm(
        **of_engine,
        workers=engine.workers if engine else [],
        timings=Timings(
            engine_start_s=engine.start_s if engine else None,
            workloads_s=end.workloads_s if end else {},
            shutdown_s=end.shutdown_s if end else None,
            total_s=total_s,
        ),
        latency=latency_of(capture.results) if capture else None,
        **given,
    )


def of_comparisons(pairs: Sequence[Compared]) -> dict[str, Any]:
    """Return the fields of a report that come from comparing pairs of captures."""
    return {
        "comparisons": [c for pair in pairs for c in pair.comparisons],
        "totals": [total for pair in pairs for total in pair.totals],
        "equal_left_out": sum(pair.equal_left_out for pair in pairs),
        "others_left_out": sum(pair.others_left_out for pair in pairs),
        "placement": [c for pair in pairs for c in pair.placement],
        "environment_differences": [d for pair in pairs for d in pair.environment],
        "engine_differences": [d for pair in pairs for d in pair.engines],
        "tolerances": list(
            dict.fromkeys(declared for pair in pairs for declared in pair.tolerances.declared)
        ),
    }


def declared_differences(
    declared: Sequence[DeclaredDifference], pairs: Sequence[Compared]
) -> list[KnownDifference]:
    """Return what a suite declares, with how often each was seen."""
    found = []
    for known in declared:
        possible = [pair.known.seen[known] for pair in pairs if known in pair.known.seen]
        seen = sum(possible)
        if seen:
            effect = f"seen in {seen} comparisons"
        else:
            effect = "not seen" if possible else "not seen: no pair of arms can show it"
        found.append(
            KnownDifference(
                backend=known.backend,
                what=known.what,
                source=known.source,
                effect=effect,
                workload=known.workload,
                request=known.request,
                field=known.field,
                seen=seen,
            )
        )
    return found


def known_of(not_run: Iterable[NotRun]) -> list[KnownDifference]:
    """Return the workloads that were left out for what a backend cannot do by design."""
    return [
        KnownDifference(
            backend=one.backend,
            what=f"cannot run workload {one.workload}"
            + (f" on {one.platform}" if one.platform else "")
            + f": {one.why}",
            source=one.source,
            effect=f"workload {one.workload} was not run",
            workload=one.workload,
        )
        for one in not_run
        if one.backend is not None
    ]


def noise_floor(topology: str, reference: str, runs: int, pairs: Sequence[Compared]) -> NoiseFloor:
    """Return what *runs* runs of a reference differ in, compared as *pairs* with the first."""
    return NoiseFloor(
        topology=topology,
        reference=reference,
        runs=runs,
        requests=sum(pair.requests for pair in pairs) // (runs - 1),
        differences=[
            c for pair in pairs for c in differences([*pair.comparisons, *pair.placement])
        ],
        within_tolerance=sum(pair.within_tolerance for pair in pairs),
    )


def topology_verdict(
    topology: str,
    names: tuple[str, str],
    verdict: Verdict,
    compared: Sequence[Compared],
    measured: Statistics,
    not_run: Iterable[str] = (),
) -> TopologyVerdict:
    """Return the verdict of one candidate on one topology with what stands behind it."""
    return TopologyVerdict(
        topology=topology,
        reference=names[0],
        candidate=names[1],
        verdict=verdict,
        requests=sum(pair.requests for pair in compared),
        different=sum(pair.different for pair in compared),
        within_tolerance=sum(pair.within_tolerance for pair in compared),
        known=sum(pair.known_requests for pair in compared),
        not_compared=sum(pair.not_compared for pair in compared),
        partial=any(pair.partial for pair in compared),
        not_run=list(not_run),
        statistics=measured,
    )


def gaps_of(
    topology: str, reference: StoredCapture, candidate: StoredCapture, names: tuple[str, str]
) -> LogprobGaps:
    """Return how far the logprobs of two captures are apart, by position."""
    return LogprobGaps(
        topology=topology,
        reference=names[0],
        candidate=names[1],
        profile=reference.header.profile,
        **logprob_gaps(reference.results, candidate.results).model_dump(),
    )
