"""From finished arms to the report: were they comparable, do they differ, what is the verdict."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import faults, noise
from vllm_ray_compat.parity.compare import Compared, compare_sources
from vllm_ray_compat.parity.plan import AGAIN, CANDIDATE, REFERENCE, Plan
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.stored import StoredCapture
from vllm_ray_compat.parity.supervise import ArmOutcome
from vllm_ray_compat.parity.tolerance import Tolerances, auto_tolerances, parse_tolerances
from vllm_ray_compat.parity.topology import parse_topology
from vllm_ray_compat.parity.workloads import known_differences_of, tolerances_of

#: What every arm of a topology must have in common with the reference, else nothing is proved.
_PINNED = ("vllm", "torch", "dtype", "async_scheduling", "enforce_eager", "v2_model_runner")
#: And what they must have in common in two Python environments.
_ALWAYS_PINNED = ("dtype", "async_scheduling", "enforce_eager")


def check_what_ran(checked: Plan, outcome: ArmOutcome, before: Sequence[ArmOutcome]) -> None:
    """Fail an arm that ran something else than planned, or than the reference ran."""
    capture = _read(outcome)
    if outcome.failure is not None or capture is None:
        return
    capture.close()
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
    if capture.count != _expected_results(checked, outcome.spec.profile):
        wrong.append(f"{capture.count} results for the requests of the suite")
    asked = outcome.spec.engine_args.get("async_scheduling", engine.async_scheduling)
    if asked != engine.async_scheduling:
        wrong.append("async scheduling turned " + ("on" if engine.async_scheduling else "off"))
    for other in before:
        same = (other.spec.topology, other.spec.profile) == (
            outcome.spec.topology,
            outcome.spec.profile,
        )
        reference = _read(other) if same else None
        if reference is not None:
            reference.close()
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
        if workload.name not in checked.not_run
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
    with contextlib.ExitStack() as stack:
        captures = {o.spec.label: _read(o) for o in outcomes}
        for capture in captures.values():
            if capture is not None:
                stack.enter_context(capture)
        # The file on disk stays what the arm wrote.
        altered = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raycompat-")))
        fault = _inject(checked, outcomes, captures, altered)
        found: list[_Topology] = []
        gaps: list[rep.LogprobGaps] = []
        floors: list[rep.NoiseFloor] = []
        for topology in map(str, checked.topologies):
            here = [o for o in outcomes if o.spec.topology == topology]
            one = _compare_topology(checked, topology, here, captures)
            found.append(one)
            gaps += one.gaps
            if one.noise:
                runs = _runs(here)
                floors.append(rep.noise_floor(topology, checked.reference.name, runs, one.noise))
        arms = [_arm(o, captures[o.spec.label]) for o in outcomes]
    verdicts = [verdict for one in found for verdict in one.verdicts]
    for topology in map(str, checked.topologies):
        verdicts += _never_started(checked, topology, outcomes)
    pairs = [pair for one in found for pair in one.compared]
    environment_failure = any(o.environment for o in outcomes)
    overall = noise.worst([v.verdict for v in verdicts])
    if any(o.failure for o in outcomes) and not environment_failure:
        overall = "fail"
    return rep.Report(
        verdict=overall,
        vllm=" and ".join(dict.fromkeys(arm.side.vllm for arm in checked.arms)),
        suite=checked.suite.name,
        workloads=_workloads(checked),
        model=checked.options.model,
        engine_core=checked.options.engine_core,
        started_at=started,
        took_s=round(time.monotonic() - began, 1),
        topologies=verdicts,
        arms=arms,
        **rep.of_comparisons(pairs),
        noise_floor=floors,
        logprob_gaps=gaps,
        known_differences=[
            known
            for known in rep.KNOWN_DIFFERENCES
            if known.backend in {o.spec.backend for o in outcomes}
        ]
        + rep.declared_differences(known_differences_of(checked.suite), pairs)
        + rep.known_of(checked.not_run.values()),
        not_run=list(checked.not_run.values()),
        injected_fault=fault,
        left_behind=left_behind,
        environment_failure=environment_failure,
    )


def _workloads(checked: Plan) -> list[rep.SuiteWorkload]:
    """Return what was asked; a workload of a profile with several engines once for each."""
    return [
        rep.SuiteWorkload(
            name=cap.of_engine(workload.name, number),
            about=workload.about,
            requests=len(workload.requests),
        )
        for workload in checked.suite.workloads
        if workload.name not in checked.not_run
        for number in range(1, checked.suite.profile(workload.profile).engines + 1)
    ]


class _Topology(NamedTuple):
    """What came of one topology: its verdicts, and the pairs of captures behind them."""

    verdicts: list[rep.TopologyVerdict]
    noise: list[Compared]
    compared: list[Compared]
    gaps: list[rep.LogprobGaps]


def _runs(here: Sequence[ArmOutcome]) -> int:
    """Return how often the reference ran on a topology: in each profile, where it ran least."""
    again = Counter(o.spec.profile for o in here if o.spec.role == AGAIN and o.failure is None)
    return 1 + min(again.values(), default=0)


def _compare_topology(
    checked: Plan,
    topology: str,
    here: Sequence[ArmOutcome],
    captures: Mapping[str, StoredCapture | None],
) -> _Topology:
    """Compare the arms of one topology, profile by profile."""
    references: dict[str, StoredCapture] = {}
    again: list[StoredCapture] = []
    for outcome in here:
        capture = captures[outcome.spec.label]
        if outcome.failure is not None or capture is None:
            continue
        if outcome.spec.role == REFERENCE:
            references[capture.header.profile] = capture
        elif outcome.spec.role == AGAIN:
            again.append(capture)
    twice = (checked.reference.name, f"{checked.reference.name} again")
    found = _Topology([], [], [], [])
    for capture in again:
        if (reference := references.get(capture.header.profile)) is not None:
            found.noise.append(_compare(checked, topology, reference, capture, twice[1]))
            found.gaps.append(rep.gaps_of(topology, reference, capture, twice))
    floor = found.noise
    runs = _runs(here)
    for name in dict.fromkeys(o.spec.name for o in here if o.spec.role == CANDIDATE):
        mine = [o for o in here if o.spec.role == CANDIDATE and o.spec.name == name]
        pairs: list[Compared] = []
        for outcome in mine:
            candidate = captures[outcome.spec.label]
            if outcome.failure is not None or candidate is None:
                continue
            reference = references.get(candidate.header.profile)
            if reference is not None:
                pairs.append(_compare(checked, topology, reference, candidate, name))
                names = (checked.reference.name, name)
                found.gaps.append(rep.gaps_of(topology, reference, candidate, names))
        verdict = noise.judge_pairs(floor, pairs)
        if any(o.failure for o in here if o.spec.role != CANDIDATE or o in mine):
            verdict = "inconclusive" if any(o.environment for o in here) else "fail"
        found.compared.extend(pairs)
        found.verdicts.append(
            rep.topology_verdict(
                topology,
                (checked.reference.name, name),
                verdict,
                pairs,
                noise.statistics_of(runs, floor, pairs),
                checked.not_run,
            )
        )
    return found


def _compare(
    checked: Plan, topology: str, reference: StoredCapture, candidate: StoredCapture, name: str
) -> Compared:
    declared, auto = parse_tolerances(checked.options.tolerances)
    if auto:
        dtypes = [c.engine.dtype if c.engine else None for c in (reference, candidate)]
        # Without a default for the dtype the comparison stays exact, and the report says so.
        with contextlib.suppress(UsageError):
            declared += auto_tolerances(dtypes)
    return compare_sources(
        topology,
        reference,
        candidate,
        names=(checked.reference.name, name),
        tolerances=Tolerances([*tolerances_of(checked.suite), *declared]),
        declared=known_differences_of(checked.suite),
    )


def _read(outcome: ArmOutcome) -> StoredCapture | None:
    try:
        return StoredCapture(outcome.spec.capture, lenient_end=True)
    except cap.CaptureError:
        if outcome.failure is None:
            raise
        return None  # the arm failed before or while it wrote; its failure is reported


def _inject(
    checked: Plan,
    outcomes: Sequence[ArmOutcome],
    captures: dict[str, StoredCapture | None],
    folder: Path,
) -> faults.Fault | None:
    """Put an altered copy, made in *folder*, in the place of the first candidate's capture."""
    if checked.options.inject_fault is None:
        return None
    for outcome in outcomes:
        capture = captures[outcome.spec.label]
        if outcome.spec.role == CANDIDATE and outcome.failure is None and capture is not None:
            path = folder / capture.path.name
            fault = faults.inject_file(capture.path, checked.options.inject_fault, path)
            captures[outcome.spec.label] = StoredCapture(path)
            return fault
    return None


def _never_started(
    checked: Plan, topology: str, outcomes: Sequence[ArmOutcome]
) -> list[rep.TopologyVerdict]:
    """Return what is said of planned candidates that never started: nothing is known of them."""
    ran = {o.spec.name for o in outcomes if (o.spec.topology, o.spec.role) == (topology, CANDIDATE)}
    planned = dict.fromkeys(
        arm.side.name
        for arm in checked.arms
        if (str(arm.topology), arm.role) == (topology, CANDIDATE)
    )
    return [
        rep.TopologyVerdict(
            topology=topology,
            reference=checked.reference.name,
            candidate=name,
            verdict="inconclusive",
            requests=0,
            different=0,
            not_run=list(checked.not_run),
        )
        for name in planned
        if name not in ran
    ]


def _arm(outcome: ArmOutcome, capture: StoredCapture | None) -> rep.Arm:
    spec = outcome.spec
    return rep.arm_of(
        capture,
        total_s=outcome.took_s,
        label=spec.label,
        role=spec.role,
        backend=spec.backend,
        name=spec.name,
        topology=spec.topology,
        profile=spec.profile,
        expected_executor=spec.expected_executor,
        capture=spec.capture.name,
        log=outcome.log.name,
        failure=outcome.failure,
        log_tail=outcome.log_tail() if outcome.failure else [],
    )
