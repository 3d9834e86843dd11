"""What a report comes to: one outcome for each workload, and the reasons for the verdict.

All forms of the report say the same, because all take it from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vllm_ray_compat.parity import noise
from vllm_ray_compat.parity.backends import short_name
from vllm_ray_compat.parity.capture import NotRun, of_suite
from vllm_ray_compat.parity.compare import Comparison, Total, differences
from vllm_ray_compat.parity.report.data import Arm, Report, TopologyVerdict
from vllm_ray_compat.parity.report.text import at, describe_request, shorten, visible

#: The last two are those of a workload that was left out.
State = noise.State | Literal["cannot run here", "known difference"]
NOT_RUN: tuple[State, ...] = ("cannot run here", "known difference")
#: Those of a workload that passes and is not equal all the same.
ACCEPTED: tuple[State, ...] = ("within tolerance", "known")

#: How a state is marked where colour cannot be relied on.
SYMBOLS: dict[State, str] = {
    "equal": "✓",
    "within tolerance": "±",
    "known": "◊",
    "different": "✗",
    "noise": "≈",
    "not compared": "–",
    "cannot run here": "⊘",
    "known difference": "⊘",
}
#: What the marks of a matrix mean, and its numbers.
LEGEND = (
    "Numbers are requests. ✓ identical, ± equal within a declared tolerance, ◊ different as "
    "declared, ✗ different, ≈ the reference differs from itself there, – not compared, ⊘ not run: "
    "it cannot be run here, or not by one of the executors (a known difference)."
)
_MOST_IN_A_REASON = 400


@dataclass(frozen=True)
class Cell:
    """The outcome of one workload for one candidate on one topology."""

    state: State
    #: The outcome in a word or two.
    label: str
    judged: noise.Judged
    different: tuple[Comparison, ...] = ()
    #: Those that are known or within a tolerance.
    accepted: tuple[Comparison, ...] = ()
    why: str = ""

    @property
    def symbol(self) -> str:
        """The state as one character."""
        return SYMBOLS[self.state]

    @property
    def requests(self) -> int:
        """How many were compared."""
        return self.judged.requests


@dataclass(frozen=True)
class Column:
    """One candidate on one topology."""

    verdict: TopologyVerdict
    cells: dict[str, Cell]
    failed: tuple[Arm, ...]

    @property
    def name(self) -> str:
        """The topology and the candidate."""
        return f"{self.verdict.topology} {short_name(self.verdict.candidate)}"


@dataclass
class Matrix:
    """Workloads (rows) by topologies and candidates (columns)."""

    workloads: list[str]
    columns: list[Column] = field(default_factory=list)


def matrix(report: Report) -> Matrix:
    """Return the outcome of every workload for every candidate on every topology."""
    compared: dict[tuple[str, str, str], list[Comparison]] = {}
    for c in report.comparisons:
        compared.setdefault((c.topology, c.candidate, c.workload), []).append(c)
    floor: dict[tuple[str, str], list[Comparison]] = {}
    totals: dict[tuple[str, str, str], list[Total]] = {}
    for t in report.totals:
        totals.setdefault((t.topology, t.candidate, t.workload), []).append(t)
    for part in report.noise_floor:
        for c in part.differences:
            floor.setdefault((part.topology, c.workload), []).append(c)
    names = dict.fromkeys(w.name for w in report.workloads)
    names.update(dict.fromkeys(c.workload for c in report.comparisons))
    names.update(dict.fromkeys(one.workload for one in report.not_run))
    made = Matrix(list(names))
    for verdict in report.topologies:
        failed = _failed_for(report, verdict)
        cells = {
            name: _cell_not_run([one for one in report.not_run if one.workload == name])
            if name in verdict.not_run
            else _cell(
                compared.get((verdict.topology, verdict.candidate, name), []),
                totals.get((verdict.topology, verdict.candidate, name), []),
                floor.get((verdict.topology, name), []),
                failed,
            )
            for name in names
        }
        made.columns.append(Column(verdict, cells, failed))
    return made


def _cell_not_run(not_run: Sequence[NotRun]) -> Cell:
    state = not_run[0].state
    why = visible("; ".join(one.told for one in not_run))
    return Cell(state, state, noise.Judged("inconclusive"), why=why)


def _failed_for(report: Report, verdict: TopologyVerdict) -> tuple[Arm, ...]:
    """Return the failed arms that a candidate's verdict rests on."""
    return tuple(
        arm
        for arm in report.failures
        if arm.topology == verdict.topology
        and (arm.role != "candidate" or arm.name == verdict.candidate)
    )


def _cell(
    compared: Sequence[Comparison],
    totals: Sequence[Total],
    floor: Sequence[Comparison],
    failed: Sequence[Arm],
) -> Cell:
    judged = noise.judge_kept(floor, compared, totals)
    why = ""
    if judged.state == "not compared":
        why = "; ".join(f"arm {visible(arm.label)} failed" for arm in failed)
        why = why or "no arm answered it"
    elif judged.state == "noise":
        noisy = f"{judged.noisy} of {judged.requests}"
        why = f"the reference differs from itself in {noisy} requests"
    elif judged.state == "known":
        why = "; ".join(dict.fromkeys(visible(c.known) for c in compared if c.known))
    return Cell(
        judged.state,
        judged.label,
        judged,
        different=tuple(differences(compared)),
        accepted=tuple(c for c in compared if c.result in ("known", "within-tolerance")),
        why=why,
    )


@dataclass(frozen=True)
class Reason:
    """One sentence for or against the verdict."""

    kind: Literal["for", "against", "open"]
    text: str

    @property
    def symbol(self) -> str:
        """The kind as one character."""
        return {"for": "✓", "against": "✗", "open": "≈"}[self.kind]


def headline(report: Report) -> str:
    """Return in a sentence or two what the verdict means, and what was left out of it."""
    return " ".join(filter(None, (_verdict_means(report), _left_out(report))))


def _left_out(report: Report) -> str:
    """Return how many workloads were not run, and why; nothing when all were."""
    names: dict[str, list[str]] = {}
    for one in report.not_run:
        names.setdefault(one.why, []).append(one.workload)
    left_out = {one.workload for one in report.not_run}
    if not left_out:
        return ""
    asked = left_out | {of_suite(workload.name) for workload in report.workloads}
    told = "; ".join(f"{', '.join(dict.fromkeys(of))} ({why})" for why, of in names.items())
    were = "was" if len(left_out) == 1 else "were"
    return shorten(
        visible(f"{len(left_out)} of {len(asked)} workloads {were} not run: {told}."),
        _MOST_IN_A_REASON,
    )


def _verdict_means(report: Report) -> str:
    requests = sum(v.requests for v in report.topologies)
    differ = sum(v.different for v in report.topologies)
    if report.injected_fault is not None:
        return (
            "A fault was put into the candidate's answers on purpose; this run shows that the "
            "comparison finds it, and nothing about the executors."
        )
    if report.verdict == "pass":
        return f"{_agreement(report)}{_of_the_reference(report)}."
    if report.verdict == "inconclusive":
        return (
            "Nothing is proved: what was compared lies within the noise of the reference, or was "
            "not compared at all."
        )
    parts = [f"{differ} of {requests} answers differ from the reference's"] if differ else []
    if report.failures:
        parts.append(f"{len(report.failures)} of {len(report.arms)} arms failed")
    return f"{' and '.join(parts) or 'The comparison failed'}."


def _agreement(report: Report) -> str:
    """Return how far all answers agree, where none of them differs."""
    columns = matrix(report).columns
    requests = sum(column.verdict.requests for column in columns)
    known, within = (sum(_accepted(column)[which] for column in columns) for which in (0, 1))
    if not known and not within:
        return (
            f"All {requests} answers of the candidates are identical to the reference's, bit for "
            "bit"
        )
    told = [f"{requests - known - within} of {requests} are identical"]
    if within:
        told.append(f"{within} equal within a declared tolerance")
    if known:
        told.append(f"{known} different as declared")
    return (
        "No answer of the candidates differs from the reference's by more than was declared: "
        + ", ".join(told)
    )


def _of_the_reference(report: Report) -> str:
    """Return how far the reference agrees with itself, where that was measured everywhere."""
    floors = {floor.topology for floor in report.noise_floor}
    if not {verdict.topology for verdict in report.topologies} <= floors:
        return ""
    if any(floor.within_tolerance for floor in report.noise_floor):
        return "; the reference agrees with itself within that tolerance"
    return ", and the reference is identical to itself"


def _accepted(column: Column) -> tuple[int, int]:
    """Return how many requests are known and how many within tolerance."""
    cells = [cell.judged for cell in column.cells.values()]
    # The verdict has exact numbers, but for one of a report from before it had them.
    return (
        column.verdict.known or sum(cell.known for cell in cells),
        column.verdict.within_tolerance or sum(cell.within_tolerance for cell in cells),
    )


def reasons(report: Report) -> list[Reason]:
    """Return why the verdict is what it is, what speaks against the candidate first."""
    found: list[Reason] = []
    fault = report.injected_fault
    if fault is not None:
        found.append(
            Reason(
                "against",
                f"Fault injected on purpose: {fault.kind} in workload {fault.workload}, request "
                f"{fault.request}{at(fault.position)}; the verdict has to be FAIL.",
            )
        )
    found += [Reason("against", f"Arm {a.label} failed: {a.failure}") for a in report.failures]
    for column in matrix(report).columns:
        found.append(_about(column))
        found += _beside(report, column.verdict)
    with_floor = {floor.topology for floor in report.noise_floor}
    for floor in report.noise_floor:
        noisy = len({(c.workload, c.request) for c in floor.differences})
        kind: Literal["for", "open"] = "open" if noisy else "for"
        how = f"differs in {noisy} of {floor.requests}" if noisy else f"equal in {floor.requests}"
        within = floor.within_tolerance
        tolerated = f", {within} answers of them only within tolerance" if within else ""
        found.append(
            Reason(
                kind,
                f"{floor.topology}: {short_name(floor.reference)} against itself, {floor.runs} "
                f"runs: {how} requests{tolerated}.",
            )
        )
    for topology in dict.fromkeys(v.topology for v in report.topologies):
        if topology not in with_floor:
            found.append(
                Reason("open", f"{topology}: no noise floor; the reference did not answer twice.")
            )
    found += [
        Reason("open", f"Workload {one.workload} was not run: {one.told}.")
        for one in report.not_run
    ]
    if report.left_behind:
        found.append(
            Reason("open", f"Shared memory that was left behind: {', '.join(report.left_behind)}.")
        )
    order = ("against", "open", "for")
    return [
        Reason(r.kind, shorten(visible(r.text), _MOST_IN_A_REASON))
        for r in sorted(found, key=lambda r: order.index(r.kind))
    ]


def _pair(verdict: TopologyVerdict) -> str:
    return f"{short_name(verdict.candidate)} against {short_name(verdict.reference)}"


def _beside(report: Report, verdict: TopologyVerdict) -> Iterator[Reason]:
    """Yield what a verdict rests on beside the requests that were compared."""
    ranks = {
        c.request
        for c in report.placement
        if c.result == "different"
        and (c.topology, c.candidate) == (verdict.topology, verdict.candidate)
    }
    where = f"{verdict.topology}: {_pair(verdict)}"
    if ranks:
        yield Reason("against", f"{where}: placed otherwise: {', '.join(sorted(ranks))}.")
    if verdict.not_compared:
        yield Reason("open", f"{where}: {verdict.not_compared} requests were not compared.")


def _about(column: Column) -> Reason:
    verdict = column.verdict
    pair = _pair(verdict)
    if not verdict.requests:
        return Reason("open", f"{verdict.topology}: {pair}: not compared.")
    different = [c for cell in column.cells.values() for c in cell.different]
    if not different:
        accepted = noise.describe_accepted(verdict.requests, *_accepted(column))
        equal = f"all {verdict.requests} requests identical"
        how = f"{accepted}, the others identical" if accepted else equal
        return Reason("for", f"{verdict.topology}: {pair}: {how}.")
    outside = [c for x in column.cells.values() if x.state == "different" for c in x.different]
    first = describe_request((outside or different)[0])
    return Reason(
        "against" if outside else "open",
        f"{verdict.topology}: {pair}: {verdict.different} of {verdict.requests} requests differ. "
        f"First: {first}",
    )
