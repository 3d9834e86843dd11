"""``junit.xml``: a test suite for each topology and candidate, a test case for each workload.

A workload with a difference is a failure; one that is equal only within a tolerance or but for
declared differences passes, and its output says so. An arm that failed is a test case of its own,
an error, and the workloads that could not be compared for it are skipped with that reason; so are
those that prove nothing, because the reference differs from itself in them, and those that were
not run, because they cannot be run here or not by one of the executors. Known differences are in
the output of each suite they belong to.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from vllm_ray_compat.parity import folder
from vllm_ray_compat.parity.backends import short_name
from vllm_ray_compat.parity.compare import Comparison
from vllm_ray_compat.parity.report.data import Arm, Report, TopologyVerdict
from vllm_ray_compat.parity.report.findings import of_floor
from vllm_ray_compat.parity.report.summary import ACCEPTED, NOT_RUN, Cell, Column, matrix
from vllm_ray_compat.parity.report.text import describe, plain_log, shorten, visible

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite

_MOST_DIFFERENCES = 100
_MOST_IN_A_MESSAGE = 1000


def render_junit(report: Report) -> bytes:
    """Return the report as JUnit XML, encoded."""
    from junitparser import JUnitXml

    document = JUnitXml(folder.REPORT_MARK)
    for column in matrix(report).columns:
        document.add_testsuite(_suite(report, column))
    shown = {v.topology for v in report.topologies}
    for arm in report.failures:
        if arm.topology not in shown:  # no candidate of its topology is in the report
            document.add_testsuite(_suite_of_an_arm(report, arm))
    written = io.BytesIO()
    document.write(written)
    return written.getvalue()


def _suite(report: Report, column: Column) -> TestSuite:
    from junitparser import SystemOut

    verdict = column.verdict
    suite = _new_suite(report, f"{verdict.topology} {verdict.candidate}", verdict.verdict)
    arms = _arms_of(report, verdict)
    for arm in arms:
        suite.add_property(visible(f"executor {arm.label}"), visible(arm.executor or "-"))
    classname = visible(f"parity.{verdict.topology}.{short_name(verdict.candidate)}")
    times = {
        workload: seconds
        for a in arms
        if (a.role, a.name) == ("candidate", verdict.candidate)
        for workload, seconds in a.timings.workloads_s.items()
    }
    cases = [_case_of_an_arm(arm, classname) for arm in column.failed]
    cases += [_case(name, cell, classname, times.get(name)) for name, cell in column.cells.items()]
    suite.add_testcases(cases)
    said = _said(report, column)
    if said:
        suite.append(SystemOut(visible(said, keep="\n")))  # type: ignore[no-untyped-call]
    return suite


def _arms_of(report: Report, verdict: TopologyVerdict) -> list[Arm]:
    """Return the arms that a verdict compares."""
    return [
        arm
        for arm in report.arms
        if arm.topology == verdict.topology
        and (arm.role == "reference" or arm.name == verdict.candidate)
    ]


def _new_suite(report: Report, name: str, verdict: str) -> TestSuite:
    from junitparser import TestSuite

    suite = TestSuite(visible(name))
    suite.timestamp = visible(report.started_at)
    for key, value in (
        *(("verdict", verdict), ("vllm", report.vllm), ("suite", report.suite)),
        *(("model", report.model), ("engine core", report.engine_core)),
    ):
        suite.add_property(key, visible(value))
    return suite


def _suite_of_an_arm(report: Report, arm: Arm) -> TestSuite:
    suite = _new_suite(report, arm.topology, "not compared")
    suite.add_testcase(_case_of_an_arm(arm, visible(f"parity.{arm.topology}")))
    return suite


def _case(name: str, cell: Cell, classname: str, took_s: float | None) -> TestCase:
    from junitparser import Failure, Skipped, TestCase

    case = TestCase(visible(name), classname, took_s)
    if cell.state == "different":
        lines = [describe(c) for c in cell.different[:_MOST_DIFFERENCES]]
        message = f"{cell.label}; {lines[0]}"
        if len(cell.different) > _MOST_DIFFERENCES:
            lines.append(f"… and {len(cell.different) - _MOST_DIFFERENCES} more, in report.json")
        failure = Failure(shorten(message, _MOST_IN_A_MESSAGE), "difference")
        failure.text = "\n".join(lines)
        case.result = [failure]
    elif cell.state == "noise":
        case.result = [Skipped(f"inconclusive: {cell.why}")]
        if cell.different:
            case.system_out = "\n".join(map(describe, cell.different[:_MOST_DIFFERENCES]))
    elif cell.state in ACCEPTED:
        case.system_out = "\n".join(
            [cell.label, *map(_accepted, cell.accepted[:_MOST_DIFFERENCES])]
        )
    elif cell.state in ("not compared", *NOT_RUN):
        case.result = [Skipped(f"{cell.state}: {cell.why}")]
    return case


def _accepted(comparison: Comparison) -> str:
    known = f" ({visible(comparison.known)})" if comparison.known else ""
    return f"{comparison.result}: {describe(comparison)}{known}"


def _case_of_an_arm(arm: Arm, classname: str) -> TestCase:
    from junitparser import Error, TestCase

    case = TestCase(visible(f"arm {arm.label}"), classname, arm.timings.total_s)
    failure = visible(arm.failure or "")
    error = Error(shorten(failure, _MOST_IN_A_MESSAGE), shorten(failure.partition(":")[0], 40))
    error.text = "\n".join([failure, *([f"Log: {visible(arm.log)}"] if arm.log else [])])
    case.result = [error]
    if arm.log_tail:
        case.system_err = plain_log(arm.log_tail)
    return case


def _said(report: Report, column: Column) -> str:
    verdict = column.verdict
    backends = {arm.backend for arm in _arms_of(report, verdict)}
    lines = [
        f"Known difference: {known.backend} {known.what}; {known.effect}. Source: {known.source}"
        for known in report.known_differences
        if known.backend in backends or known.workload in verdict.not_run
    ]
    for floor in report.noise_floor:
        if floor.topology == verdict.topology:
            lines.append(f"Noise floor: {floor.reference} against itself, {of_floor(floor)}")
            lines += [f"  {describe(c)}" for c in floor.differences[:_MOST_DIFFERENCES]]
    if report.injected_fault is not None:
        fault = report.injected_fault
        lines.append(
            f"Fault injected on purpose: {fault.kind} in workload {fault.workload}, request "
            f"{fault.request}."
        )
    if report.left_behind:
        lines.append(f"Left behind: {', '.join(report.left_behind)}")
    return "\n".join(lines)
