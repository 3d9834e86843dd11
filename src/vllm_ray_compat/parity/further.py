"""What a run looks for after the arms: the step of a difference, and what lies past it."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.past import Forced, compare_forced, forced_suite
from vllm_ray_compat.parity.plan import CANDIDATE, FORCED, REFERENCE, Plan, PlannedArm
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.supervise import ArmOutcome
from vllm_ray_compat.parity.trace import ENDING, first_difference


def _reference(topology: str, profile: str, outcomes: Sequence[ArmOutcome]) -> ArmOutcome | None:
    """Return the reference arm of a topology and profile, where it ran to its end."""
    for other in outcomes:
        same = (other.spec.topology, other.spec.profile) == (topology, profile)
        if same and other.spec.role == REFERENCE and other.failure is None:
            return other
    return None


def step_differences(outcomes: Sequence[ArmOutcome]) -> list[rep.StepDifference]:
    """Compare the step traces of the candidates with their reference's.

    Raises:
        CaptureError: a trace cannot be read.
    """
    found = []
    for outcome in outcomes:
        reference = _reference(outcome.spec.topology, outcome.spec.profile, outcomes)
        if outcome.spec.role != CANDIDATE or outcome.failure is not None or reference is None:
            continue
        paths = [o.spec.capture.with_name(o.spec.label + ENDING) for o in (reference, outcome)]
        found.append(
            rep.StepDifference(
                topology=outcome.spec.topology,
                candidate=outcome.spec.name,
                profile=outcome.spec.profile,
                divergence=first_difference(*paths),
            )
        )
    return found


def forced_arms(
    checked: Plan, outcomes: Sequence[ArmOutcome], report: rep.Report
) -> tuple[PlannedArm, ...]:
    """Return the arms that go along the reference's tokens where a candidate had others."""
    arms = []
    profile_of = {workload.name: workload.profile for workload in checked.suite.workloads}
    for planned in checked.arms:
        if planned.role != CANDIDATE:
            continue
        diverged = {
            (c.workload, c.request)
            for c in report.comparisons
            if (c.topology, c.candidate) == (str(planned.topology), planned.side.name)
            and (c.field, c.result) == ("token_ids", "different")
            and profile_of.get(c.workload) == planned.profile
        }
        reference = _reference(str(planned.topology), planned.profile, outcomes)
        if not diverged or reference is None:
            continue
        answers = cap.read_capture(reference.spec.capture)
        suite = forced_suite(checked.suite, planned.profile, diverged, answers)
        if suite is not None:
            arms.append(planned._replace(role=FORCED, suite=suite))
    return tuple(arms)


def forced_results(
    outcomes: Sequence[ArmOutcome], forced: Sequence[ArmOutcome]
) -> tuple[list[Forced], list[str]]:
    """Return what the forced arms say, and why those say nothing that did not run to their end."""
    found: list[Forced] = []
    failed: list[str] = []
    for outcome in forced:
        reference = _reference(outcome.spec.topology, outcome.spec.profile, outcomes)
        if outcome.failure is not None or reference is None:
            failed.append(f"{outcome.spec.label}: {outcome.failure}")
            continue
        try:
            found += compare_forced(
                outcome.spec.topology,
                outcome.spec.name,
                cap.read_capture(reference.spec.capture),
                cap.read_capture(outcome.spec.capture),
            )
        except ValueError as error:
            failed.append(f"{outcome.spec.label}: {error}")
    return found, failed
