"""The phase schedule: which vLLM release ships and prefers which Ray executor.

One immutable table, measured from the published wheels and checked when this module is loaded,
in the manner of the versioned feature gates of Kubernetes. Everything else (decisions, warnings,
documentation, the migration guide) follows from it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from vllm_ray_compat.errors import UsageError, suggestion


class Backend(str, enum.Enum):
    """The two executors behind ``distributed_executor_backend="ray"``."""

    LEGACY = "legacy"
    V2 = "v2"


class Phase(enum.IntEnum):
    """The phases of vLLM RFC 35848, with phase 0 for the releases before it."""

    V2_ABSENT = 0
    OFF_BY_DEFAULT = 1
    ON_BY_DEFAULT = 2
    LEGACY_REMOVED = 3


@dataclass(frozen=True)
class Row:
    """One phase: the first release it holds for, what that ships and what it prefers."""

    phase: Phase
    since: Version
    default: Backend
    ships: frozenset[Backend]
    rfc: str


_BOTH = frozenset(Backend)

SCHEDULE: tuple[Row, ...] = (
    Row(
        Phase.V2_ABSENT,
        Version("0.15.0"),
        Backend.LEGACY,
        frozenset({Backend.LEGACY}),
        "before the RFC",
    ),
    Row(
        Phase.OFF_BY_DEFAULT,
        Version("0.20.0"),
        Backend.LEGACY,
        _BOTH,
        "feature flag, disabled by default",
    ),
    Row(Phase.ON_BY_DEFAULT, Version("0.21.0"), Backend.V2, _BOTH, "enabled by default"),
    Row(
        Phase.LEGACY_REMOVED,
        Version("0.33.0"),
        Backend.V2,
        frozenset({Backend.V2}),
        "always enabled, backward compatible",
    ),
)

#: The releases whose published wheels were read for the table, oldest first.
RELEASES: tuple[str, ...] = (
    *("0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1"),
    *("0.20.0", "0.20.1", "0.20.2"),
    *("0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0"),
    *("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
    *("0.33.0",),
)

#: Import path of each executor where vLLM ships it, and of this package's own.
VLLM_EXECUTORS = {
    Backend.LEGACY: "vllm.v1.executor.ray_executor:RayDistributedExecutor",
    Backend.V2: "vllm.v1.executor.ray_executor_v2:RayExecutorV2",
}
#: Where vLLM's are found with their known defects repaired: subclasses of the same names.
REPAIRED_EXECUTORS = {
    backend: "vllm_ray_compat.executors.repaired:" + path.partition(":")[2]
    for backend, path in VLLM_EXECUTORS.items()
}
COMPAT_EXECUTORS = {
    Backend.LEGACY: "vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor",
    Backend.V2: "vllm_ray_compat.executors.ray_v2:RayExecutorV2",
}


#: The first release that asks the executor's class whether it can schedule asynchronously. Before,
#: vLLM goes by the backend's name, and ``"ray"`` is not among those that can.
ASYNC_BY_CLASS_SINCE = Version("0.19.0")


class ScheduleError(AssertionError):
    """The table contradicts itself; raised when the module is loaded."""


def validate(rows: Sequence[Row], releases: Sequence[str]) -> None:
    """Check that *rows* can be a schedule, and report every contradiction at once.

    Versions rise; phases rise one by one, without a gap and never back; a row prefers what it
    ships; a backend that was removed never comes back; the releases are sorted, each lies in a
    row, and each row holds one.

    Raises:
        ScheduleError: with one line for every contradiction.
    """
    faults: list[str] = []
    if not rows:
        raise ScheduleError("the schedule is empty")
    if rows[0].phase != 0:
        faults.append(f"the first row is phase {rows[0].phase}, not 0")
    for row in rows:
        if row.default not in row.ships:
            faults.append(f"phase {row.phase}: prefers {row.default.value}, which it does not ship")
    removed: set[Backend] = set()
    for before, after in pairwise(rows):
        if after.since <= before.since:
            faults.append(f"phase {after.phase}: {after.since} does not come after {before.since}")
        if after.phase != before.phase + 1:
            faults.append(f"phase {after.phase} follows phase {before.phase}")
        removed |= before.ships - after.ships
        for backend in sorted(after.ships & removed):
            faults.append(f"phase {after.phase}: {backend.value} comes back after its removal")
    versions = [Version(text) for text in releases]
    if versions != sorted(set(versions)):
        faults.append("the releases are not sorted or not unique")
    for version in versions:
        if version < rows[0].since:
            faults.append(f"release {version} is older than the first row")
    for index, row in enumerate(rows):
        end = rows[index + 1].since if index + 1 < len(rows) else None
        if not any(row.since <= v and (end is None or v < end) for v in versions):
            faults.append(f"phase {row.phase}: no release lies in it")
        if row.since not in versions:
            faults.append(f"phase {row.phase}: its first release {row.since} is not listed")
    if faults:
        raise ScheduleError("; ".join(dict.fromkeys(faults)))


validate(SCHEDULE, RELEASES)


class UnknownReleaseError(UsageError):
    """A text that names no vLLM release this schedule speaks of."""


def parse_release(text: str) -> Version:
    """Parse the name of a vLLM release: ``0.24.0``, the shorter ``0.24``, or a build of one.

    Raises:
        UnknownReleaseError: not a version, older than the first row of the schedule, or one that
            was never released.
    """
    known = f"Known: {RELEASES[0]} to {RELEASES[-1]}, or newer."
    try:
        version = Version(text)
    except InvalidVersion:
        raise UnknownReleaseError(
            f"{text!r} is not a vLLM release.{suggestion(text, RELEASES)} {known}"
        ) from None
    base = Version(version.base_version)
    if version.epoch or base < SCHEDULE[0].since:
        raise UnknownReleaseError(
            f"vLLM {text} is older than {RELEASES[0]}, the oldest release this schedule covers."
            f"{suggestion(text, RELEASES)} {known}"
        )
    if not is_beyond(version) and not any(base in (r, _line(r)) for r in map(Version, RELEASES)):
        raise UnknownReleaseError(
            f"There is no vLLM release {text}.{suggestion(base.public, RELEASES)} {known}"
        )
    return version


def _line(release: Version) -> Version:
    """Return the line of a release: 0.20 for 0.20.2."""
    return Version(f"{release.major}.{release.minor}")


def row_for_ships(ships: frozenset[Backend]) -> Row:
    """Return the latest row that ships exactly *ships*, for a vLLM that names no release.

    Without such a row (neither executor is there), the last one.
    """
    fits = [row for row in SCHEDULE if row.ships == ships]
    return fits[-1] if fits else SCHEDULE[-1]


def row_for(release: Version) -> Row:
    """Return the row of *release*; a pre-release or nightly counts as the release it leads to.

    A release newer than the table takes the last row (see :func:`is_beyond`).
    """
    base = Version(release.base_version)
    return max((row for row in SCHEDULE if row.since <= base), key=lambda row: row.since)


def row_for_phase(phase: int) -> Row:
    """Return the row of phase number *phase* (0 to 3)."""
    return SCHEDULE[Phase(phase)]


def is_beyond(release: Version) -> bool:
    """Say whether *release* is newer than every release the table was measured on."""
    return Version(release.base_version) > Version(RELEASES[-1])


def next_row(row: Row) -> Row | None:
    """Return the row that follows *row*, or None after the last phase."""
    following = row.phase + 1
    return SCHEDULE[following] if following < len(SCHEDULE) else None


def removal(backend: Backend) -> Version | None:
    """Return the first release that no longer ships *backend*, or None."""
    for before, after in pairwise(SCHEDULE):
        if backend in before.ships and backend not in after.ships:
            return after.since
    return None


def span(row: Row) -> str:
    """Return the releases of *row* as text: ``0.15.0 – 0.19.1`` or ``0.33.0 and later``."""
    inside = [text for text in RELEASES if row_for(Version(text)) is row]
    if row is SCHEDULE[-1]:
        return f"{row.since} and later"
    return f"{inside[0]} – {inside[-1]}"


def as_dicts() -> list[dict[str, object]]:
    """Return the table as plain data, one object a phase, for ``schedule --json``."""
    return [
        {
            "phase": int(row.phase),
            "name": row.phase.name.lower(),
            "since": str(row.since),
            "releases": [text for text in RELEASES if row_for(Version(text)) is row],
            "default": row.default.value,
            "ships": sorted(backend.value for backend in row.ships),
            "rfc": row.rfc,
        }
        for row in SCHEDULE
    ]
