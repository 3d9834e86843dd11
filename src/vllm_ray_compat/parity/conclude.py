"""From finished arms to the report: were they comparable, do they differ, what is the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import faults, noise
from vllm_ray_compat.parity.compare import Comparison, compare, differences
from vllm_ray_compat.parity.latency import latency_of
from vllm_ray_compat.parity.logprob_gaps import logprob_gaps
from vllm_ray_compat.parity.plan import AGAIN, CANDIDATE, REFERENCE, Plan
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.supervise import ArmOutcome
from vllm_ray_compat.parity.topology import parse_topology

#: What every arm of a topology must have in common with the reference, else nothing is proved.
_PINNED = ("vllm", "torch", "dtype", "async_scheduling", "enforce_eager", "v2_model_runner")


def check_what_ran(checked: Plan, outcome: ArmOutcome, before: Sequence[ArmOutcome]) -> None:
    """Fail an arm that ran something else than planned, or than the reference ran."""
    capture = _read(outcome)
    if outcome.failure is not None or capture is None:
        return
    engine = capture.engine
    if engine is None:
        outcome.failure = "capture: it holds no record of the engine"
        return
    world_size = parse_topology(outcome.spec.topology).world_size
    wrong = []
    if len(engine.workers) != world_size:
        wrong.append(f"{len(engine.workers)} workers instead of {world_size}")
    if not checked.vllm.version.startswith(engine.vllm.partition("+")[0]):
        wrong.append(f"vLLM {engine.vllm} instead of {checked.vllm.version}")
    if len(capture.results) != sum(len(w.requests) for w in checked.suite.workloads):
        wrong.append(f"{len(capture.results)} results for the requests of the suite")
    for other in before:
        reference = _read(other) if other.spec.topology == outcome.spec.topology else None
        if other.spec.role == REFERENCE and reference is not None and reference.engine is not None:
            wrong += [
                f"{name} {getattr(engine, name)} where the reference has "
                f"{getattr(reference.engine, name)}"
                for name in _PINNED
                if getattr(engine, name) != getattr(reference.engine, name)
            ]
    if wrong:
        outcome.failure = "not comparable: it ran with " + "; ".join(wrong)


def conclude(
    checked: Plan,
    outcomes: Sequence[ArmOutcome],
    left_behind: list[str],
    started: str,
    began: float,
) -> rep.Report:
    """Compare the arms of *checked* and build the report.

    Args:
        checked: what was planned.
        outcomes: the arms that ran, in their order.
        left_behind: segments that could not be freed.
        started: when the run began, ISO 8601.
        began: the same by the monotonic clock (seconds).
    """
    captures = {o.spec.label: _read(o) for o in outcomes}
    fault = _inject(checked, outcomes, captures)
    verdicts: list[rep.TopologyVerdict] = []
    compared: list[Comparison] = []
    floors: list[rep.NoiseFloor] = []
    gaps: list[rep.LogprobGaps] = []
    for topology in map(str, checked.topologies):
        here = [o for o in outcomes if o.spec.topology == topology]
        usable = {o.spec.role: captures[o.spec.label] for o in here if o.failure is None}
        reference, again = usable.get(REFERENCE), usable.get(AGAIN)
        floor: list[Comparison] = []
        if reference is not None and again is not None:
            floor = compare(topology, reference, again, f"{again.header.backend} again")
            gaps.append(_gaps(topology, reference, again, f"{again.header.backend} again"))
            floors.append(
                rep.NoiseFloor(
                    topology=topology,
                    reference=reference.header.backend,
                    runs=2,
                    requests=len(reference.results),
                    differences=differences(floor),
                )
            )
        for outcome in (o for o in here if o.spec.role == CANDIDATE):
            candidate = captures[outcome.spec.label]
            found: list[Comparison] = []
            if reference is not None and candidate is not None and outcome.failure is None:
                found = compare(topology, reference, candidate)
                gaps.append(_gaps(topology, reference, candidate, candidate.header.backend))
            verdict = noise.judge(floor, found)
            if any(o.failure for o in here if o.spec.role != CANDIDATE or o is outcome):
                verdict = "inconclusive" if any(o.environment for o in here) else "fail"
            compared += found
            verdicts.append(
                rep.TopologyVerdict(
                    topology=topology,
                    reference=checked.options.reference,
                    candidate=outcome.spec.backend,
                    verdict=verdict,
                    requests=len({(c.workload, c.request) for c in found}),
                    different=len({(c.workload, c.request) for c in differences(found)}),
                )
            )
        verdicts += _not_run(checked, topology, here)
    environment_failure = any(o.environment for o in outcomes)
    overall = noise.worst([v.verdict for v in verdicts])
    if any(o.failure for o in outcomes) and not environment_failure:
        overall = "fail"
    return rep.Report(
        verdict=overall,
        vllm=checked.vllm.version,
        suite=checked.suite.name,
        workloads=[
            rep.SuiteWorkload(name=w.name, about=w.about, requests=len(w.requests))
            for w in checked.suite.workloads
        ],
        model=checked.options.model,
        engine_core=checked.options.engine_core,
        started_at=started,
        took_s=round(time.monotonic() - began, 1),
        topologies=verdicts,
        arms=[_arm(o, captures[o.spec.label]) for o in outcomes],
        comparisons=compared,
        noise_floor=floors,
        logprob_gaps=gaps,
        known_differences=[
            known
            for known in rep.KNOWN_DIFFERENCES
            if known.backend in {o.spec.backend for o in outcomes}
        ],
        injected_fault=fault,
        left_behind=left_behind,
        environment_failure=environment_failure,
    )


def _read(outcome: ArmOutcome) -> cap.Capture | None:
    try:
        return cap.read_capture(outcome.spec.capture, lenient_end=True)
    except cap.CaptureError:
        if outcome.failure is None:
            raise
        return None  # the arm failed before or while it wrote; its failure is reported


def _inject(
    checked: Plan, outcomes: Sequence[ArmOutcome], captures: dict[str, cap.Capture | None]
) -> faults.Fault | None:
    """Alter the first candidate's capture in memory; the file on disk stays what the arm wrote."""
    if checked.options.inject_fault is None:
        return None
    for outcome in outcomes:
        capture = captures[outcome.spec.label]
        if outcome.spec.role == CANDIDATE and outcome.failure is None and capture is not None:
            captures[outcome.spec.label], fault = faults.inject(
                capture, checked.options.inject_fault
            )
            return fault
    return None


def _not_run(checked: Plan, topology: str, here: Sequence[ArmOutcome]) -> list[rep.TopologyVerdict]:
    """Return what is said of planned candidates that never started: nothing is known of them."""
    ran = {o.spec.backend for o in here if o.spec.role == CANDIDATE}
    return [
        rep.TopologyVerdict(
            topology=topology,
            reference=checked.options.reference,
            candidate=backend,
            verdict="inconclusive",
            requests=0,
            different=0,
        )
        for planned, backend, role in checked.arms
        if (str(planned), role) == (topology, CANDIDATE) and backend not in ran
    ]


def _gaps(
    topology: str, reference: cap.Capture, candidate: cap.Capture, name: str
) -> rep.LogprobGaps:
    found = logprob_gaps(reference.results, candidate.results)
    return rep.LogprobGaps(
        topology=topology,
        reference=reference.header.backend,
        candidate=name,
        profile=reference.header.profile,
        **found.model_dump(),
    )


def _arm(outcome: ArmOutcome, capture: cap.Capture | None) -> rep.Arm:
    spec = outcome.spec
    engine = capture.engine if capture else None
    end = capture.end if capture else None
    return rep.Arm.model_validate(
        {
            "label": spec.label,
            "role": spec.role,
            "backend": spec.backend,
            "topology": spec.topology,
            "profile": capture.header.profile if capture else "default",
            "expected_executor": spec.expected_executor,
            **{
                name: getattr(engine, name, None)
                for name in (
                    *("executor", "executor_read_from", "provider", "repairs"),
                    *("vllm", "ray", "torch", "python"),
                    *("dtype", "async_scheduling", "v2_model_runner"),
                )
            },
            "workers": [worker.model_dump() for worker in engine.workers] if engine else [],
            "timings": {
                "engine_start_s": engine.start_s if engine else None,
                "workloads_s": end.workloads_s if end else {},
                "shutdown_s": end.shutdown_s if end else None,
                "total_s": outcome.took_s,
            },
            "latency": latency_of(capture.results).model_dump() if capture else None,
            "capture": spec.capture.name,
            "log": outcome.log.name,
            "failure": outcome.failure,
            "log_tail": outcome.log_tail() if outcome.failure else [],
        }
    )
