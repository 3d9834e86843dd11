"""Compare captures that were recorded elsewhere: other machines, other releases, other days."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, NamedTuple

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import noise
from vllm_ray_compat.parity.capture import NotRun
from vllm_ray_compat.parity.compare import Compared, compare_sources
from vllm_ray_compat.parity.finding import capture_files, check_whole
from vllm_ray_compat.parity.plan import AGAIN, CANDIDATE, REFERENCE
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.stored import StoredCapture
from vllm_ray_compat.parity.tolerance import (
    Declared,
    Tolerances,
    auto_tolerances,
    parse_tolerances,
)
from vllm_ray_compat.parity.workloads import (
    Suite,
    known_differences_of,
    load_suite,
    parse_suite,
    suite_names,
    tolerances_of,
)

_Role = Literal["reference", "reference-again", "candidate"]


#: Stands for the arm that a topology has on one side only.
_NONE = "(no capture)"


class Kind(NamedTuple):
    """What two captures have in common when they can be compared."""

    topology: str
    profile: str


class _Names(NamedTuple):
    reference: str
    candidate: str


def compare_captures(
    reference: Path,
    candidate: Path,
    *,
    tolerances: Sequence[str] = (),
    again: Sequence[Path] = (),
    partial: bool = False,
) -> rep.Report:
    """Compare two captures, or those of two report folders by topology and profile.

    Of a folder the reference is its reference arm (its second run gives the noise floor), and the
    candidates are its candidate arms, or its reference arm where it has none.

    Args:
        reference: a capture or a folder.
        candidate: a capture or a folder.
        tolerances: as on the command line.
        again: further captures of the reference arm, for the noise floor.
        partial: take captures of arms that did not get to their end.

    Raises:
        UsageError: a capture that cannot be read, or does not belong to the other.
    """
    began = time.monotonic()
    started = datetime.now(timezone.utc)
    from_command_line, auto = parse_tolerances(tolerances)
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> list[StoredCapture]:
            return [
                stack.enter_context(StoredCapture(file, lenient_end=True))
                for file in capture_files(path)
            ]

        of_reference, of_candidate = opened(reference), opened(candidate)
        left = _of_role(of_reference, REFERENCE)
        right = _of_role(of_candidate, CANDIDATE, REFERENCE)
        runs = [capture for path in again for capture in _of_role(opened(path), AGAIN, REFERENCE)]
        if len(of_reference) > 1:
            runs += [c for c in of_reference if c.header.role == AGAIN]
        if not partial:
            for capture in (*left, *right, *runs):
                check_whole(capture)
        for capture in runs:
            if capture.header.backend not in {c.header.backend for c in left}:
                raise UsageError(
                    f"{capture.path}: a capture of {capture.header.backend} says nothing about "
                    f"the noise of {left[0].header.backend}; expected a further run of it."
                )
        suite = _suite_of(left[0].header.suite, candidate, reference)
        declared = [] if suite is None else known_differences_of(suite)

        def compare(one: StoredCapture, other: StoredCapture, names: _Names) -> Compared:
            limits: list[Declared] = [] if suite is None else tolerances_of(suite)
            limits += from_command_line
            if auto:
                limits += auto_tolerances(
                    [c.engine.dtype if c.engine else None for c in (one, other)]
                )
            return compare_sources(
                one.header.topology,
                one,
                other,
                names=names,
                tolerances=Tolerances(limits),
                declared=declared,
            )

        verdicts: list[rep.TopologyVerdict] = []
        floors: list[rep.NoiseFloor] = []
        pairs: list[Compared] = []
        gaps: list[rep.LogprobGaps] = []
        arms: list[rep.Arm] = []
        not_run: dict[NotRun, None] = {}
        topologies = dict.fromkeys(c.header.topology for c in (*left, *right))
        if len(left) == len(right) == 1:
            topologies = {left[0].header.topology: None}  # if not the same, comparing says so
        elif not {_kind(c) for c in left} & {_kind(c) for c in right}:
            raise UsageError(
                f"No two captures belong together: {reference} has {_kinds(left)}, {candidate} "
                f"has {_kinds(right)}; expected the same topology and profile in both."
            )
        for topology in topologies:
            mine = [c for c in left if c.header.topology == topology]
            repeated = [c for c in runs if c.header.topology == topology]
            floor = [
                compare(one, c, _Names(one.header.backend, f"{c.header.backend} again"))
                for c in repeated
                for one in mine
                if _kind(one) == _kind(c)
            ]
            count = 1 + max(
                (sum(_kind(c) == _kind(one) for c in repeated) for one in mine), default=0
            )
            if floor:
                floors.append(rep.noise_floor(topology, floor[0].reference, count, floor))
            arms += [_arm(c, REFERENCE, c.header.backend) for c in mine]
            arms += [_arm(c, AGAIN, c.header.backend) for c in repeated]
            theirs = right if len(topologies) == 1 else _on(right, topology)
            for backend in dict.fromkeys(c.header.backend for c in theirs) or [_NONE]:
                found: list[Compared] = []
                names = _Names(_backend(mine), backend)
                others = [c for c in theirs if c.header.backend == backend]
                for other in others:
                    alone = len(left) == len(right) == 1
                    for one in (c for c in mine if alone or _kind(c) == _kind(other)):
                        names = _names(one, other)
                        found.append(compare(one, other, names))
                        gaps.append(rep.gaps_of(one.header.topology, one, other, names))
                    arms.append(_arm(other, CANDIDATE, names.candidate))
                left_out = dict.fromkeys(one for c in (*mine, *others) for one in c.header.not_run)
                verdict = rep.topology_verdict(
                    topology,
                    names,
                    noise.judge_pairs(floor, found),
                    found,
                    noise.statistics_of(count, floor, found),
                    dict.fromkeys(one.workload for one in left_out),
                )
                # Whoever names one capture of a folder's many means that one.
                if found and reference.is_dir() and candidate.is_dir():
                    lacking = _without_partner(mine, others)
                    verdict.not_compared += lacking
                    if lacking and verdict.verdict == "pass":
                        verdict.verdict = "inconclusive"
                verdicts.append(verdict)
                not_run |= left_out
                pairs += found
    return rep.Report(
        verdict=noise.worst([v.verdict for v in verdicts]),
        vllm=_both(c.engine.vllm if c.engine else "unknown" for c in (left[0], right[0])),
        suite=left[0].header.suite,
        model=_both(c.header.model for c in (left[0], right[0])),
        engine_core=_both(c.header.engine_core for c in (left[0], right[0])),
        started_at=started.isoformat(timespec="seconds"),
        took_s=round(time.monotonic() - began, 1),
        topologies=verdicts,
        arms=arms,
        **rep.of_comparisons(pairs),
        noise_floor=floors,
        logprob_gaps=gaps,
        workloads=_workloads(suite, [*left, *right]),
        not_run=list(not_run),
        known_differences=rep.declared_differences(declared, pairs) + rep.known_of(not_run),
        injected_fault=None,
        left_behind=[],
        environment_failure=False,
    )


def _of_role(captures: list[StoredCapture], *roles: _Role) -> list[StoredCapture]:
    """Return a single capture as it is; of several those of the first role that there is."""
    if len(captures) == 1:
        return captures
    for role in roles:
        found = [c for c in captures if c.header.role == role]
        if found:
            return found
    folder = captures[0].path.parent
    raise UsageError(
        f"The folder {folder} holds no capture of a {' or '.join(roles)} arm, only of "
        f"{', '.join(sorted({c.header.role for c in captures}))}. Name a capture in it."
    )


def _workloads(suite: Suite | None, captures: Sequence[StoredCapture]) -> list[rep.SuiteWorkload]:
    """Return the workloads of the captures, described where their suite is known."""
    asked: Counter[str] = Counter()
    for capture in _on(captures, captures[0].header.topology):
        places = capture.keys()
        asked |= Counter(key.workload for key, _ in places)
    about = {} if suite is None else {w.name: w.about for w in suite.workloads}
    return [
        rep.SuiteWorkload(name=name, about=about.get(name, ""), requests=count)
        for name, count in asked.items()
    ]


def _without_partner(mine: Sequence[StoredCapture], theirs: Sequence[StoredCapture]) -> int:
    """Return how many requests are of a profile that one side has alone, for no declared reason."""
    sides = [(mine, theirs), (theirs, mine)]
    return sum(
        not any(other.header.leaves_out(key.workload) for other in others)
        for captures, others in sides
        for capture in captures
        if _kind(capture) not in {_kind(other) for other in others}
        for key, _ in capture.keys()  # noqa: SIM118 (not a mapping)
    )


def _kind(capture: StoredCapture) -> Kind:
    return Kind(capture.header.topology, capture.header.profile)


def _kinds(captures: Sequence[StoredCapture]) -> str:
    return ", ".join(
        k.topology + (f" ({k.profile})" if k.profile != "default" else "")
        for k in dict.fromkeys(map(_kind, captures))
    )


def _on(captures: Sequence[StoredCapture], topology: str) -> list[StoredCapture]:
    return [c for c in captures if c.header.topology == topology]


def _backend(captures: Sequence[StoredCapture]) -> str:
    return captures[0].header.backend if captures else _NONE


def _names(one: StoredCapture, other: StoredCapture) -> _Names:
    """Name both arms by backend, and where that is the same, by what else tells them apart."""
    names = [c.header.backend for c in (one, other)]
    if names[0] == names[1]:
        names = [f"{c.header.backend}@{c.engine.vllm if c.engine else '?'}" for c in (one, other)]
    if names[0] == names[1]:
        names[1] = f"{names[1]} (other)"
    return _Names(*names)


def _both(values: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(values))


def _suite_of(name: str, *places: Path) -> Suite | None:
    """Find the suite of a capture: beside one of them, else among those of this package.

    Raises:
        SuiteError: the file beside a capture is no suite.
    """
    for place in places:
        file = (place if place.is_dir() else place.parent) / "suite.json"
        if file.is_file():
            suite = parse_suite(file.read_text(encoding="utf-8"), str(file))
            if suite.name == name:
                return suite
    return load_suite(name) if name in suite_names() else None


def _arm(capture: StoredCapture, role: _Role, backend: str) -> rep.Arm:
    header, engine, end = capture.header, capture.engine, capture.end
    return rep.arm_of(
        capture,
        total_s=end.total_s if end else 0.0,
        label=capture.path.stem,
        role=role,
        backend=backend,
        topology=header.topology,
        profile=header.profile,
        expected_executor=engine.executor if engine else "unknown",
        capture=str(capture.path),
        log="",
        failure=None,
        log_tail=[],
    )
