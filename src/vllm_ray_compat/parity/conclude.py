"""From finished arms to the report: were they comparable, do they differ, what is the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import faults, noise
from vllm_ray_compat.parity.compare import Comparison, compare, differences
from vllm_ray_compat.parity.plan import AGAIN, CANDIDATE, REFERENCE, Plan
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.supervise import ArmOutcome
from vllm_ray_compat.parity.topology import parse_topology

#: What every arm of a topology must have in common with the reference, else nothing is proved.
_PINNED = ("vllm", "torch", "dtype", "async_scheduling", "enforce_eager", "v2_model_runner")
#: And what they must have in common in two Python environments.
_ALWAYS_PINNED = ("dtype", "async_scheduling", "enforce_eager")


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
    if not outcome.spec.vllm.startswith(engine.vllm.partition("+")[0]):
        wrong.append(f"vLLM {engine.vllm} instead of {outcome.spec.vllm}")
    if len(capture.results) != _expected_results(checked, outcome.spec.profile):
        wrong.append(f"{len(capture.results)} results for the requests of the suite")
    for other in before:
        same = (other.spec.topology, other.spec.profile) == (
            outcome.spec.topology,
            outcome.spec.profile,
        )
        reference = _read(other) if same else None
        if other.spec.role == REFERENCE and reference is not None and reference.engine is not None:
            pinned = _PINNED if other.spec.python == outcome.spec.python else _ALWAYS_PINNED
            wrong += [
                f"{name} {getattr(engine, name)} where the reference has "
                f"{getattr(reference.engine, name)}"
                for name in pinned
                if getattr(engine, name) != getattr(reference.engine, name)
            ]
    if wrong:
        outcome.failure = "not comparable: it ran with " + "; ".join(wrong)


def _expected_results(checked: Plan, profile: str) -> int:
    """Return how many results an arm of *profile* has to bring."""
    asked = sum(
        len(workload.requests)
        for workload in checked.suite.of_profile(profile)
        if workload.name not in checked.unavailable
    )
    return asked * checked.suite.profile(profile).engines


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
    for topology in map(str, checked.topologies):
        here = [o for o in outcomes if o.spec.topology == topology]
        noise_of: dict[str, list[Comparison]] = {}
        references: dict[str, cap.Capture] = {}
        for outcome in here:
            capture = captures[outcome.spec.label]
            if outcome.failure is not None or capture is None:
                continue
            profile = outcome.spec.profile
            if outcome.spec.role == REFERENCE:
                references[profile] = capture
            elif outcome.spec.role == AGAIN and profile in references:
                reference = references[profile]
                noise_of[profile] = compare(
                    topology, reference, capture, f"{capture.header.backend} again"
                )
        if noise_of:
            floors.append(
                rep.NoiseFloor(
                    topology=topology,
                    reference=checked.reference.name,
                    runs=2,
                    requests=sum(len(references[p].results) for p in noise_of),
                    differences=[d for floor in noise_of.values() for d in differences(floor)],
                )
            )
        for name in dict.fromkeys(o.spec.name for o in here if o.spec.role == CANDIDATE):
            found: list[Comparison] = []
            mine = [o for o in here if o.spec.role == CANDIDATE and o.spec.name == name]
            for outcome in mine:
                candidate, profile = captures[outcome.spec.label], outcome.spec.profile
                if profile in references and candidate is not None and outcome.failure is None:
                    found += compare(topology, references[profile], candidate, name)
            verdict = noise.judge([c for floor in noise_of.values() for c in floor], found)
            if any(o.failure for o in here if o.spec.role != CANDIDATE or o in mine):
                verdict = "inconclusive" if any(o.environment for o in here) else "fail"
            compared += found
            verdicts.append(
                rep.TopologyVerdict(
                    topology=topology,
                    reference=checked.reference.name,
                    candidate=name,
                    verdict=verdict,
                    requests=len({(c.workload, c.request) for c in found}),
                    different=len({(c.workload, c.request) for c in differences(found)}),
                )
            )
    environment_failure = any(o.environment for o in outcomes)
    overall = noise.worst([v.verdict for v in verdicts])
    if any(o.failure for o in outcomes) and not environment_failure:
        overall = "fail"
    return rep.Report(
        verdict=overall,
        vllm=checked.reference.vllm,
        suite=checked.suite.name,
        model=checked.options.model,
        engine_core=checked.options.engine_core,
        started_at=started,
        took_s=round(time.monotonic() - began, 1),
        topologies=verdicts,
        arms=[_arm(o, captures[o.spec.label]) for o in outcomes],
        comparisons=compared,
        noise_floor=floors,
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
            "capture": spec.capture.name,
            "log": outcome.log.name,
            "failure": outcome.failure,
            "log_tail": outcome.log_tail() if outcome.failure else [],
        }
    )
