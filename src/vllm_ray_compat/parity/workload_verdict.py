"""The verdict of one workload of one candidate on one topology, from the report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_ray_compat.parity import noise
from vllm_ray_compat.parity.capture import of_suite
from vllm_ray_compat.parity.compare import Comparison, Total, differences
from vllm_ray_compat.parity.noise import Judged, State, Verdict
from vllm_ray_compat.parity.plan import AGAIN, CANDIDATE, REFERENCE
from vllm_ray_compat.parity.report.data import Arm, Report
from vllm_ray_compat.parity.report.text import describe
from vllm_ray_compat.parity.workloads import Workload


@dataclass(frozen=True)
class WorkloadVerdict:
    """What a report says of one workload.

    Attributes:
        verdict: as of a whole topology.
        failed: the arms it depends on that did not run to their end; with any, it is ``fail``.
        lines: why it is no ``pass``: one paragraph each, the first divergence first.
        state: what its requests came to.
    """

    verdict: Verdict
    failed: tuple[Arm, ...]
    lines: tuple[str, ...]
    state: State


def judge(
    report: Report, topology: str, workload: Workload, reference: str, candidate: str
) -> WorkloadVerdict:
    """Judge *workload* alone, by the rules of :func:`~vllm_ray_compat.parity.noise.judge`.

    Args:
        report: of a run with that topology.
        topology: which.
        workload: it depends on the arms of its own profile alone.
        reference: the name of the side (``Side.name``).
        candidate: the same.
    """
    depends = {(REFERENCE, reference), (AGAIN, reference), (CANDIDATE, candidate)}
    failed = tuple(
        arm
        for arm in report.failures
        if (arm.topology, arm.profile) == (topology, workload.profile)
        and (arm.role, arm.name) in depends
    )
    if failed:
        return WorkloadVerdict("fail", failed, (), "not compared")

    def is_this(one: Comparison | Total) -> bool:
        return one.topology == topology and of_suite(one.workload) == workload.name

    def of_this(comparisons: Sequence[Comparison]) -> list[Comparison]:
        return [c for c in comparisons if is_this(c)]

    totals = [t for t in report.totals if is_this(t) and t.candidate == candidate]
    compared = [c for c in of_this(report.comparisons) if c.candidate == candidate]
    floor = of_this([c for f in report.noise_floor for c in f.differences])
    judged = noise.judge_kept(floor, compared, totals)
    lines = tuple(_why(judged, floor, compared))
    return WorkloadVerdict(judged.verdict, (), lines, judged.state)


def _why(judged: Judged, floor: Sequence[Comparison], compared: Sequence[Comparison]) -> list[str]:
    if not judged.requests:
        return ["nothing of this workload was compared."]
    lines = []
    found = differences(compared)
    if found:
        lines.append(f"first divergence: {describe(found[0])}")
        lines.append(
            f"{judged.different} of {judged.requests} requests differ, in {len(found)} fields; "
            "report.json has all."
        )
    elif judged.verdict == "fail":
        lines.append("it differs in more places than the report keeps one by one.")
    if floor:
        lines.append(
            "the reference differs from itself, so an exact comparison proves nothing about "
            f"{'these requests' if judged.verdict == 'inconclusive' else 'some requests'}: "
            f"{describe(floor[0])}"
        )
    return lines
