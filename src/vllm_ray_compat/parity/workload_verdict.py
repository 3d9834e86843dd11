"""The verdict of one workload of one candidate on one topology, from the report of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_ray_compat.parity import noise
from vllm_ray_compat.parity.arm import short_name
from vllm_ray_compat.parity.compare import Comparison, differences
from vllm_ray_compat.parity.noise import Verdict
from vllm_ray_compat.parity.plan import CANDIDATE
from vllm_ray_compat.parity.report.data import Arm, Report
from vllm_ray_compat.parity.report.text import describe


@dataclass(frozen=True)
class WorkloadVerdict:
    """What a report says of one workload.

    Attributes:
        verdict: as of a whole topology.
        failed: the arms it depends on that did not run to their end; with any, it is ``fail``.
        lines: why it is no ``pass``: one paragraph each, the first divergence first.
        requests: how many were compared.
    """

    verdict: Verdict
    failed: tuple[Arm, ...]
    lines: tuple[str, ...]
    requests: int


def judge(report: Report, topology: str, workload: str, candidate: str) -> WorkloadVerdict:
    """Judge *workload* alone, by the rules of :func:`~vllm_ray_compat.parity.noise.judge`."""
    failed = tuple(
        arm
        for arm in report.failures
        if arm.topology == topology
        and (arm.role != CANDIDATE or arm.backend == candidate.partition("@")[0])
    )
    if failed:
        return WorkloadVerdict("fail", failed, (), 0)

    def of_this(comparisons: Sequence[Comparison]) -> list[Comparison]:
        # Of several engines on one host the workload of each counts: "name", "name@2", …
        return [
            c
            for c in comparisons
            if c.topology == topology and c.workload.partition("@")[0] == workload
        ]

    compared = [c for c in of_this(report.comparisons) if _is_of(c.candidate, candidate)]
    floor = of_this([c for f in report.noise_floor for c in f.differences])
    verdict = noise.judge(floor, compared)
    requests = len({c.request for c in compared})
    return WorkloadVerdict(verdict, (), tuple(_why(verdict, floor, compared)), requests)


def _is_of(name: str, asked: str) -> bool:
    """Say whether a candidate's *name* in a report is of what was asked for, ``v2@PYTHON``."""
    backend, at, _ = asked.partition("@")
    short = short_name(backend)
    return name.startswith(f"{short}@") if at else name == short


def _why(
    verdict: Verdict, floor: Sequence[Comparison], compared: Sequence[Comparison]
) -> list[str]:
    if not compared:
        return ["nothing of this workload was compared."]
    lines = []
    found = differences(compared)
    if found:
        different, asked = len({c.request for c in found}), len({c.request for c in compared})
        lines.append(f"first divergence: {describe(found[0])}")
        lines.append(
            f"{different} of {asked} requests differ, in {len(found)} fields; report.json has all."
        )
    if floor:
        lines.append(
            "the reference differs from itself, so an exact comparison proves nothing about "
            f"{'these requests' if verdict == 'inconclusive' else 'some requests'}: "
            f"{describe(floor[0])}"
        )
    return lines
