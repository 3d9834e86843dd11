"""The self test: every seeded fault must be found at its place, and nothing where there is none.

Each altered capture is written to a file and compared as any other, so that reading, bringing
together, comparing and judging are all on trial.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import noise
from vllm_ray_compat.parity.compare import Compared, compare_sources, differences
from vllm_ray_compat.parity.faults import KINDS, Fault, FaultError, inject, write_capture
from vllm_ray_compat.parity.faults.harmless import KEY_ORDER
from vllm_ray_compat.parity.faults.harmless import KINDS as HARMLESS
from vllm_ray_compat.parity.finding import capture_files
from vllm_ray_compat.parity.stored import StoredCapture
from vllm_ray_compat.parity.synthetic import NAME as SYNTHETIC
from vllm_ray_compat.parity.synthetic import synthetic_capture

SCHEMA = "vllm_ray_compat.selftest/1"

#: Of a larger capture the results that come first are used, up to so many bytes.
_MOST_BYTES = 4 << 20

Judgement = Literal["caught", "missed"]


class Trial(BaseModel):
    """One fault in one capture, and what was wrong with how it was found."""

    model_config = ConfigDict(extra="forbid")

    fault: Fault
    capture: str
    problem: str | None = Field(description="None: found where it was put, and nothing else was.")


class FalseAlarm(BaseModel):
    """A comparison that had to be equal and was not."""

    model_config = ConfigDict(extra="forbid")

    between: str
    first: str


class Count(BaseModel):
    """How often a kind of fault was caught."""

    model_config = ConfigDict(extra="forbid")

    caught: int = 0
    total: int = 0
    on: list[str] = Field(default=[], description="The captures it was put into.")


class SelfTest(BaseModel):
    """The object that ``parity selftest --json`` prints."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_: str = Field(default=SCHEMA, alias="schema")
    holds: bool
    captures: list[str] = Field(description="'synthetic' is one made up for the test.")
    shortened: list[str] = Field(description="Captures of which only the beginning was used.")
    seed: int
    caught: int
    total: int
    kinds: dict[str, Count]
    missed: list[Trial]
    runs: int = Field(description="Comparisons of a capture with its like.")
    real_runs: int = Field(description="Those of them between captures of two real arms.")
    harmless: int = Field(description="Comparisons with a change that must raise no alarm.")
    false_alarms: list[FalseAlarm]


class _Base(BaseModel):
    """A capture to alter: in memory, and on disk as it is."""

    name: str
    capture: cap.Capture
    path: Path
    shortened: bool


def selftest(
    captures: Path | None = None, runs: int = 50, positions: int = 5, seed: int = 0
) -> SelfTest:
    """Run the self test.

    Args:
        captures: a capture or a report folder; default those of real engines that come with the
            package, and a synthetic one. What none of those given can carry is put into that one.
        runs: comparisons that must raise no alarm.
        positions: places at which each fault is put.
        seed: of the places.

    Raises:
        UsageError: *captures* holds none, or one that cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="raycompat-selftest-") as folder:
        spare = _synthetic(Path(folder))
        if captures is None:
            files = {f"{path.stem} (comes along)": path for path in shipped()}
        else:
            files = {str(path): path for path in capture_files(captures)}
        bases = [_load(path, name, Path(folder), i) for i, (name, path) in enumerate(files.items())]
        if captures is None:
            bases.append(spare)
        trials = list(_trials(bases, spare, positions, seed, Path(folder)))
        pairs = list(_equal_pairs(bases))
        alarms: list[FalseAlarm] = []
        for run in range(runs):
            base = bases[run % len(bases)]
            if run < len(pairs):
                left, right = pairs[run]
                alarms += _alarm(f"{left} and {right}", left, right)
            else:
                kind = HARMLESS[run % len(HARMLESS)].name
                alarms += _copy_alarm(base, kind, Random(f"{seed} run {run}"), Path(folder))
        harmless = [(base, kind.name) for base in bases for kind in HARMLESS]
        for base, kind in harmless:
            alarms += _copy_alarm(base, kind, Random(f"{seed} {kind}"), Path(folder))
    missed = [trial for trial in trials if trial.problem is not None]
    counts: dict[str, Count] = {}
    for trial in trials:
        count = counts.setdefault(trial.fault.kind, Count())
        count.total += 1
        count.caught += trial.problem is None
        if trial.capture not in count.on:
            count.on.append(trial.capture)
    return SelfTest(
        holds=not missed and not alarms,
        captures=list(dict.fromkeys(trial.capture for trial in trials)),
        shortened=[base.name for base in bases if base.shortened],
        seed=seed,
        caught=len(trials) - len(missed),
        total=len(trials),
        kinds=counts,
        missed=missed,
        runs=runs,
        real_runs=min(runs, len(pairs)),
        harmless=len(harmless),
        false_alarms=alarms,
    )


def shipped() -> list[Path]:
    """Return the captures of real engines that come with the package.

    They are of suite ``full`` on tp2pp2, made by ``scripts/sample_captures.py``.
    """
    folder = Path(str(resources.files("vllm_ray_compat.parity"))) / "samples"
    return sorted(folder.glob("*.jsonl"))


def _load(path: Path, name: str, folder: Path, number: int) -> _Base:
    """Read a capture, the beginning of a large one; an arm that was cut off gets no further."""
    capture: cap.Capture | None = None
    size, shortened = 0, False
    with StoredCapture(path, lenient_end=True) as stored:
        capture = cap.Capture(header=stored.header, engine=stored.engine, end=stored.end)
        for _, place in stored.keys():  # noqa: SIM118 (not a mapping)
            size += len(stored.raw(place))
            if size > _MOST_BYTES and capture.results:
                shortened = True
                break
            capture.results.append(stored.result(place))
    if not capture.results:
        raise UsageError(f"{path}: the capture holds no result, so no fault can be put into it.")
    if capture.end is None:  # whole, as far as the test goes
        capture.end = cap.End(workloads_s={}, shutdown_s=0.0, total_s=0.0)
    copy = folder / f"base-{number}.jsonl"
    write_capture(capture, copy)
    return _Base(name=name, capture=capture, path=copy, shortened=shortened)


def _synthetic(folder: Path) -> _Base:
    capture = synthetic_capture()
    path = folder / "synthetic.jsonl"
    write_capture(capture, path)
    return _Base(name=SYNTHETIC, capture=capture, path=path, shortened=False)


def _trials(
    bases: Sequence[_Base], spare: _Base, positions: int, seed: int, folder: Path
) -> Iterator[Trial]:
    harmless = {kind.name for kind in HARMLESS}
    for kind in KINDS:
        if kind in harmless:
            continue
        for number in range(positions):
            random = Random(f"{seed} {kind} {number}")
            order = random.sample(list(bases), len(bases))
            for base in [*order, spare]:
                try:
                    altered, fault = inject(base.capture, kind, random)
                except FaultError:  # this one cannot carry it; the synthetic one can carry all
                    if base is spare:
                        raise
                    continue
                compared = _compare(base, altered, folder)
                yield Trial(fault=fault, capture=base.name, problem=problem(fault, compared))
                break


def _compare(
    base: _Base, altered: cap.Capture, folder: Path, shuffle: Random | None = None
) -> Compared:
    path = folder / "altered.jsonl"
    write_capture(altered, path, shuffle)
    with StoredCapture(base.path) as left, StoredCapture(path) as right:
        return compare_sources(left.header.topology, left, right)


def problem(fault: Fault, compared: Compared) -> str | None:
    """Return what is wrong with how *fault* was found, or None where nothing is."""
    found = differences([*compared.comparisons, *compared.placement])
    here = [c for c in found if (c.workload, c.request) == (fault.workload, fault.request)]
    if not here:
        return "it was not found"
    places = [
        (c.field, c.first_divergence.position, c.first_divergence.output)
        for c in here
        if c.first_divergence is not None
    ]
    if not any(
        (field, position) == (fault.field, fault.position) and fault.output in (None, output)
        for field, position, output in places
    ):
        return f"it was found elsewhere in its request: {places}"
    touched = {(fault.workload, fault.request), *map(tuple, fault.also)}
    seen = {(c.workload, c.request) for c in found}
    if seen != touched:
        strays, lost = sorted(seen - touched), sorted(touched - seen)
        return f"what else was found: {strays}; what else was to be: {lost}"
    verdict = noise.judge_pairs([], [compared])
    return None if verdict == "fail" else f"the verdict is {verdict}"


def _equal_pairs(bases: Sequence[_Base]) -> Iterator[tuple[Path, Path]]:
    """Yield every pair of captures that are runs of one arm."""
    arms: dict[tuple[str, ...], list[_Base]] = {}
    for base in bases:
        header = base.capture.header
        key = (header.backend, header.topology, header.suite, header.profile, header.engine_core)
        arms.setdefault(key, []).append(base)
    for runs in arms.values():
        for i, one in enumerate(runs):
            for other in runs[i + 1 :]:
                if len(one.capture.results) == len(other.capture.results):
                    yield one.path, other.path


def _copy_alarm(base: _Base, kind: str, random: Random, folder: Path) -> list[FalseAlarm]:
    altered, _ = inject(base.capture, kind, random)
    path = folder / "altered.jsonl"
    write_capture(altered, path, random if kind == KEY_ORDER else None)
    return _alarm(f"{base.name} and a copy ({kind})", base.path, path)


def _alarm(between: str, left: Path, right: Path) -> list[FalseAlarm]:
    with StoredCapture(left) as one, StoredCapture(right) as other:
        compared = compare_sources(one.header.topology, one, other)
    if noise.judge_pairs([], [compared]) == "pass":
        return []
    found = differences([*compared.comparisons, *compared.placement])
    first = f"{found[0].workload}, {found[0].request}, {found[0].field}" if found else "nothing"
    return [FalseAlarm(between=between, first=first)]
