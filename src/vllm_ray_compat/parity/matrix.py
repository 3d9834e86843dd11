"""Which parity runs make sense: releases x topologies x pairs of executors, from the phase table.

Two kinds of pairs, both asked of :func:`~vllm_ray_compat.selector.select` and none written down:

- legacy against V2 on every release, each by whoever provides it there;
- vLLM's own class against this package's of the same backend, on the last release that ships it
  before vLLM removes it: what is restored later is proved beside the original.

Imports the core alone, so that a CI job that only prints the matrix needs no vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.version import Version

from vllm_ray_compat import schedule
from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.executors import catalog
from vllm_ray_compat.flag import Flag, FlagValue
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity.topology import Topology, parse_topology
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import PROVIDER_COMPAT, Decision, select
from vllm_ray_compat.settings import Settings

SCHEMA = "vllm_ray_compat.matrix/1"

TOPOLOGIES = ("tp2", "pp2", "tp2pp2")
#: What the locks under requirements/ are for.
PYTHON = "3.11"
#: GitHub refuses a matrix with more jobs.
GITHUB_LIMIT = 256

_FLAG_VALUES = {Backend.LEGACY: (FlagValue.OFF, "0"), Backend.V2: (FlagValue.ON, "1")}
_SHARD = re.compile(r"([1-9][0-9]*)/([1-9][0-9]*)")
_PYTHON = re.compile(r"3\.[0-9]+")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Side:
    """One side of a pair.

    Attributes:
        backend: what ``parity run`` takes: ``legacy``, ``v2`` or ``module:Class``.
        short: the same for names of jobs and files.
        executor: the class that runs, ``module:Class``.
        provider: whose class that is.
        environment: what an engine needs so that ``"ray"`` is this executor. (``parity run`` sets
            it for its arms itself.)
    """

    backend: str
    short: str
    executor: str
    provider: str
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Cell:
    """One parity run."""

    release: str
    topology: Topology
    reference: Side
    candidate: Side
    python: str = PYTHON

    @property
    def id(self) -> str:
        """Unique in a matrix, and fit for the name of a file or an artifact."""
        return f"{self.release}-{self.topology}-{self.reference.short}-{self.candidate.short}"

    @property
    def name(self) -> str:
        """What a person reads in the list of jobs."""
        sides = (f"{side.short} ({side.provider})" for side in (self.reference, self.candidate))
        return f"vLLM {self.release}, {self.topology}, {' vs '.join(sides)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of an include list."""
        sides = {"reference": self.reference, "candidate": self.candidate}
        return {
            "id": self.id,
            "name": self.name,
            "release": self.release,
            "phase": int(schedule.row_for(Version(self.release)).phase),
            "topology": str(self.topology),
            "devices": self.topology.world_size,
            **{role: side.backend for role, side in sides.items()},
            "executors": {role: side.executor for role, side in sides.items()},
            "providers": {role: side.provider for role, side in sides.items()},
            "environment": {role: dict(side.environment) for role, side in sides.items()},
            "python": self.python,
        }


@dataclass(frozen=True)
class Matrix:
    """All cells, by release (oldest first), then pair, then topology; and what was left out."""

    cells: tuple[Cell, ...]
    left_out: tuple[str, ...] = ()


def build(
    releases: Sequence[str] = schedule.RELEASES,
    topologies: Sequence[str] = TOPOLOGIES,
    python: str = PYTHON,
) -> Matrix:
    """Build the matrix.

    Args:
        releases: names as :func:`~vllm_ray_compat.schedule.parse_release` takes them.
        topologies: ``tpN``, ``ppN`` or ``tpNppN``.
        python: the interpreter of every cell, ``3.N``.

    Raises:
        UsageError: a release, topology or Python that is none.
    """
    if _PYTHON.fullmatch(python) is None:
        raise UsageError(f"--python {python!r} is not a version of Python. Write 3.N: {PYTHON}.")
    split = tuple(dict.fromkeys(parse_topology(text) for text in topologies))
    named = sorted({_canonical(text) for text in releases}, key=Version)
    cells: list[Cell] = []
    left_out: list[str] = []
    for release in named:
        sides = {backend: _routed(release, backend) for backend in Backend}
        pairs = [(sides[Backend.LEGACY], sides[Backend.V2])]
        pairs += [(sides[backend], _own(backend)) for backend in _about_to_go(release)]
        for reference, candidate in pairs:
            if reference is None or candidate is None:
                left_out.append(
                    f"vLLM {release}: neither it nor this version of vllm_ray_compat provides "
                    "both executors of a pair"
                )
                continue
            cells += [Cell(release, one, reference, candidate, python) for one in split]
    return Matrix(tuple(cells), tuple(left_out))


def _canonical(text: str) -> str:
    """Return the name under which a release was published: ``0.24.0`` for ``0.24``."""
    release = schedule.parse_release(text)
    return next((name for name in schedule.RELEASES if Version(name) == release), str(release))


def _routed(release: str, backend: Backend) -> Side | None:
    """Return *backend* as routed on *release*; with what restores it only where that is needed."""
    value, text = _FLAG_VALUES[backend]
    for restore in (False, True):
        decision = select(release, flag=Flag(value), settings=Settings(restore_legacy=restore))
        if decision.backend is backend and catalog.is_present(decision):
            restored = (("RAYCOMPAT_RESTORE_LEGACY", "1"),) if restore else ()
            return _side(decision, ((FLAG_NAME, text), *restored))
    return None


def _side(decision: Decision, environment: tuple[tuple[str, str], ...]) -> Side:
    backend = decision.backend.value
    return Side(backend, backend, decision.executor, decision.provider, environment)


def _about_to_go(release: str) -> Iterator[Backend]:
    """Yield what vLLM ships in *release* and no longer in the one that follows it."""
    later = [name for name in schedule.RELEASES if Version(name) > Version(release)]
    if later:
        here, after = (schedule.row_for(Version(name)) for name in (release, later[0]))
        yield from sorted(here.ships - after.ships)


def _own(backend: Backend) -> Side:
    """Return this package's executor for *backend*, named as a class, which no flag changes."""
    executor = schedule.COMPAT_EXECUTORS[backend]
    return Side(executor, executor.rpartition(":")[2], executor, PROVIDER_COMPAT)


def parse_shard(text: str) -> tuple[int, int]:
    """Parse ``I/N``: part I, from 1, of N parts.

    Raises:
        UsageError: it is not, or I is greater than N.
    """
    match = _SHARD.fullmatch(text)
    if match is None or int(match.group(1)) > int(match.group(2)):
        raise UsageError(
            f"--shard {text!r} is not I/N: part I of N, two whole numbers with 1 ≤ I ≤ N. "
            "Example: --shard 2/3"
        )
    return int(match.group(1)), int(match.group(2))


def shard(cells: Sequence[_T], part: int, parts: int) -> list[_T]:
    """Return part *part* of *parts*, counted from 1.

    The parts are disjoint, together all cells, and of lengths that differ by one at most. A part
    is a run of neighbours, so that the topologies of a release, large ones and small ones, stay
    together with the environment they share. With more parts than cells some are empty.
    """
    return list(cells[len(cells) * (part - 1) // parts : len(cells) * part // parts])


def check_github_limit(cells: Iterable[Cell]) -> None:
    """Check that GitHub takes a matrix of *cells*.

    Raises:
        UsageError: too many, with the shards that would do.
    """
    count = len(list(cells))
    if count > GITHUB_LIMIT:
        parts = -(-count // GITHUB_LIMIT)
        raise UsageError(
            f"The matrix has {count} jobs, and GitHub runs at most {GITHUB_LIMIT} of one matrix. "
            f"Split it further with --shard (here {parts} parts would do), or name fewer "
            "releases or topologies."
        )
