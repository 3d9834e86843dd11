"""Decide which executor serves ``distributed_executor_backend="ray"``, and say why.

Pure: given the release, the flag and the settings, the same decision on every machine. What it
is not given it reads from the environment, never by importing vLLM.

======  =============  ==========================  ===========================
phase   flag unset     flag off                    flag on
======  =============  ==========================  ===========================
0       legacy (vllm)  legacy (vllm)               v2 (vllm_ray_compat)
1       legacy (vllm)  legacy (vllm)               v2 (vllm)
2       v2 (vllm)      legacy (vllm), deprecation  v2 (vllm)
3       v2 (vllm)      v2 (vllm), no effect; or    v2 (vllm), note: drop it
                       with RESTORE_LEGACY legacy
                       (vllm_ray_compat)
======  =============  ==========================  ===========================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from vllm_ray_compat import deprecations, schedule
from vllm_ray_compat.errors import EXIT_DIFFERENCE, RaycompatError
from vllm_ray_compat.executors import repairs as known_repairs
from vllm_ray_compat.executors.repairs.repair import Repair
from vllm_ray_compat.flag import Flag, FlagValue, read_flag
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import Backend, Phase
from vllm_ray_compat.settings import Settings, describe_unknown, read_settings
from vllm_ray_compat.vllm_api import Installation, find_vllm

STATUS_SCHEMA = "vllm_ray_compat.status/1"

PROVIDER_VLLM = "vllm"
PROVIDER_COMPAT = "vllm_ray_compat"


class StrictModeError(RaycompatError):
    """``RAYCOMPAT_STRICT=1`` and the decision carries warnings. Exit code 1."""

    exit_code = EXIT_DIFFERENCE

    def __init__(self, found: tuple[deprecations.RaycompatWarning, ...]) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        return (
            "RAYCOMPAT_STRICT=1 turns warnings into errors: "
            + " ".join(str(warning) for warning in self.found)
            + " Correct the cause, or unset RAYCOMPAT_STRICT."
        )


@dataclass(frozen=True)
class Decision:
    """What serves ``"ray"``, with everything that led to it.

    Attributes:
        backend: the executor chosen.
        executor: its import path, ``module:Class``; of a repaired one, that of vLLM's own class.
        provider: ``vllm`` or ``vllm_ray_compat``: whose class that is.
        phase: the policy in force.
        policy: where the phase came from.
        flag: the flag as read, with its source.
        vllm: the release the decision is for.
        reasons: why, one sentence each, in the order they applied.
        notes: what to know that needs no action now.
        warnings: what needs action; errors under ``RAYCOMPAT_STRICT=1``.
        strict: whether they are.
        next_change: the next release that changes something, and what; None in the last phase.
        repairs: what is repaired in vLLM's class, in a subclass of it.
        routed: whether this package routes at all; false when it is disabled or not allowed.
    """

    backend: Backend
    executor: str
    provider: str
    phase: Phase
    policy: str
    flag: Flag
    vllm: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[deprecations.RaycompatWarning, ...] = ()
    strict: bool = False
    next_change: Mapping[str, str] | None = None
    repairs: tuple[Repair, ...] = ()
    routed: bool = True

    @property
    def loaded(self) -> str:
        """The import path of the class that vLLM is given: with repairs, a subclass."""
        return schedule.REPAIRED_EXECUTORS[self.backend] if self.repairs else self.executor

    def enforce(self) -> None:
        """Raise what ``RAYCOMPAT_STRICT=1`` makes an error.

        Raises:
            StrictModeError: strict, and there are warnings.
        """
        if self.strict and self.warnings:
            raise StrictModeError(self.warnings)

    def one_line(self) -> str:
        """Return the line that is logged when an engine starts."""
        line = (
            f"Ray executor backend {self.backend.value}: {self.executor} (provider "
            f"{self.provider}), phase {int(self.phase)} from {self.policy}, flag {self.flag}"
        )
        if self.repairs:
            line += f", repaired: {', '.join(repair.name for repair in self.repairs)}"
        return line

    def to_dict(self) -> dict[str, Any]:
        """Return the object that ``status --json`` prints."""
        return {
            "schema": STATUS_SCHEMA,
            "vllm": self.vllm,
            "phase": int(self.phase),
            "backend": self.backend.value,
            "provider": self.provider,
            "executor": self.executor,
            "flag": {
                "value": self.flag.value.value,
                "raw": self.flag.raw,
                "source": self.flag.source,
            },
            "policy": self.policy,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "warnings": [
                {"category": type(warning).__name__, "message": str(warning)}
                for warning in self.warnings
            ],
            "repairs": [repair.to_dict() for repair in self.repairs],
            "loaded": self.loaded,
            "next_change": dict(self.next_change) if self.next_change else None,
            "strict": self.strict,
            "routed": self.routed,
        }


def _describe_change(here: schedule.Row, after: schedule.Row) -> str:
    parts = []
    for backend in sorted(after.ships - here.ships):
        parts.append(f"vLLM ships {backend.value}")
    if after.default is not here.default:
        parts.append(
            f"with the flag unset, {after.default.value} runs instead of {here.default.value}"
        )
    for backend in sorted(here.ships - after.ships):
        parts.append(f"vLLM removes {backend.value}, and {FLAG_NAME} has no effect there")
    return "; ".join(parts) or after.rfc


def select(
    vllm: str | Installation | None = None,
    *,
    flag: Flag | None = None,
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
) -> Decision:
    """Decide which executor serves ``"ray"``.

    Args:
        vllm: a release (``"0.24.0"``), an installation found on disk, or None for the one
            installed here.
        flag: None reads it from *environ*.
        settings: None reads them from *environ*.
        environ: None is ``os.environ``.

    Raises:
        InvalidFlagError: the flag is neither 0, 1 nor unset.
        SettingsError: a ``RAYCOMPAT_*`` variable has a value that is not accepted.
        UnknownReleaseError: *vllm* is a text that names no release the schedule covers. (An
            installation that is no known release is judged by what it ships.)
        VllmNotFoundError: *vllm* is None and no vLLM is installed.
    """
    if settings is None:
        settings = read_settings(environ)
    if flag is None:
        flag = read_flag(environ)
    if vllm is None:
        vllm = find_vllm()
    notes: list[str] = []
    if isinstance(vllm, Installation):
        row = _row_of(vllm, notes)
        version, ships, origin = vllm.version, vllm.ships, f"the installed vLLM {vllm.version}"
    else:
        release = schedule.parse_release(vllm)
        _note_newer(release, notes)
        row = schedule.row_for(release)
        version, ships, origin = str(release), row.ships, f"vLLM {vllm}, named by the caller"
    return _decide(version, row, ships, origin, flag, settings, notes)


def _row_of(vllm: Installation, notes: list[str]) -> schedule.Row:
    """Return the row of an installation; of one that is no known release, by what it ships.

    A plugin that refused to know a nightly, a fork or a source tree would take down a vLLM that
    starts without it.
    """
    try:
        release = schedule.parse_release(vllm.version)
    except schedule.UnknownReleaseError as error:
        row = schedule.row_for_ships(vllm.ships)
        notes.append(
            f"{error} It ships {_names(vllm.ships)}: it is treated as phase {int(row.phase)}."
        )
        return row
    _note_newer(release, notes)
    row = schedule.row_for(release)
    if vllm.ships != row.ships:
        notes.append(
            f"The installed vLLM {vllm.version} ships {_names(vllm.ships)} where the schedule "
            f"says {_names(row.ships)}: what is on disk is used."
        )
    return row


def _note_newer(release: Version, notes: list[str]) -> None:
    if schedule.is_beyond(release):
        notes.append(
            f"vLLM {release} is newer than {schedule.RELEASES[-1]}, the newest release the "
            "schedule was measured on: its last row is used."
        )


def _decide(
    version: str,
    row: schedule.Row,
    ships: frozenset[Backend],
    origin: str,
    flag: Flag,
    settings: Settings,
    notes: list[str],
) -> Decision:
    reasons: list[str] = []
    warnings: list[deprecations.RaycompatWarning] = []
    policy_row, policy = row, origin
    if settings.inactive is not None:
        reasons.append(f"{settings.inactive}: vLLM decides on its own")
        backend = _vllms_own(row, ships, flag, reasons)
        ships = ships | {backend}  # vLLM has no other way than its own
    else:
        if settings.phase is not None:
            policy_row, policy = schedule.row_for_phase(settings.phase), settings.phase_source
        backend = _choose(policy_row, flag, settings, reasons, notes, warnings)
        for name in settings.unknown:
            warnings.append(deprecations.UnknownSettingWarning(describe_unknown(name)))
    shipped = backend in ships
    if not shipped:
        reasons.append(f"vLLM {version} does not ship {backend.value}: this package provides it")
        if backend is Backend.V2 and not _asks_the_class(version):
            notes.append(
                f"V2 runs without async scheduling here: vLLM before "
                f"{schedule.ASYNC_BY_CLASS_SINCE} allows it by the backend's name, and not for ray."
            )
    repairs: tuple[Repair, ...] = ()
    if shipped and settings.inactive is None:
        repairs = known_repairs.in_force(
            backend, version, settings.repairs, settings.unwanted_repairs
        )
        notes.extend(_notes_on_repairs(backend, version, settings, repairs))
    after = schedule.next_row(row)
    return Decision(
        backend=backend,
        executor=(schedule.VLLM_EXECUTORS if shipped else schedule.COMPAT_EXECUTORS)[backend],
        provider=PROVIDER_VLLM if shipped else PROVIDER_COMPAT,
        phase=policy_row.phase,
        policy=policy,
        flag=flag,
        vllm=version,
        reasons=tuple(reasons),
        notes=tuple(notes),
        warnings=tuple(warnings),
        strict=settings.strict and settings.inactive is None,
        next_change=(
            {"release": str(after.since), "what": _describe_change(row, after)} if after else None
        ),
        repairs=repairs,
        routed=settings.inactive is None,
    )


def _vllms_own(
    row: schedule.Row, ships: frozenset[Backend], flag: Flag, reasons: list[str]
) -> Backend:
    """Return what vLLM takes without this package: it reads the flag only where it ships both."""
    if len(ships) == 1:
        (only,) = ships
        reasons.append(f"it ships {only.value} only")
        return only
    by_flag = {FlagValue.ON: Backend.V2, FlagValue.OFF: Backend.LEGACY}
    backend = by_flag.get(flag.value, row.default)
    reasons.append(f"it ships both, and the flag is {flag.value.value}: {backend.value}")
    return backend


def _choose(
    row: schedule.Row,
    flag: Flag,
    settings: Settings,
    reasons: list[str],
    notes: list[str],
    warnings: list[deprecations.RaycompatWarning],
) -> Backend:
    removed_in = str(schedule.removal(Backend.LEGACY))
    removed = Backend.LEGACY not in row.ships
    if flag.value is FlagValue.UNSET:
        reasons.append(f"the flag is unset and phase {int(row.phase)} prefers {row.default.value}")
        return row.default
    if flag.value is FlagValue.ON:
        reasons.append("the flag is on: v2")
        if removed:
            notes.append(
                f"{FLAG_NAME}=1 is not needed since vLLM {removed_in}, which does not know the "
                "name: drop it."
            )
        return Backend.V2
    if not removed:
        reasons.append("the flag is off: legacy")
        if row.default is Backend.V2:
            warnings.append(
                deprecations.LegacyExecutorRemovedInVllm033Warning(
                    deprecations.legacy_removed_text(removed_in)
                )
            )
        return Backend.LEGACY
    if settings.restore_legacy:
        reasons.append("the flag is off and RAYCOMPAT_RESTORE_LEGACY=1: legacy, restored")
        return Backend.LEGACY
    reasons.append(f"the flag is off, but vLLM removed legacy in {removed_in}: v2")
    warnings.append(
        deprecations.FlagIgnoredSinceVllm033Warning(deprecations.flag_ignored_text(removed_in))
    )
    return Backend.V2


def _notes_on_repairs(
    backend: Backend, version: str, settings: Settings, applied: tuple[Repair, ...]
) -> Iterator[str]:
    """Say which repairs are left out, and why: nobody should think they are in force."""
    left_out = [r for r in known_repairs.in_force(backend, version) if r not in applied]
    if left_out:
        names = ", ".join(repair.name for repair in left_out)
        yield f"Left out by RAYCOMPAT_REPAIRS: {names}."
    if not known_repairs.are_known_for(version):
        yield (
            f"No repairs are applied to vLLM {version}: they were tested up to "
            f"{schedule.RELEASES[-1]}."
        )
        return
    for name in sorted((settings.repairs or frozenset()) - {repair.name for repair in applied}):
        repair = known_repairs.BY_NAME[name]
        if not any(repair.applies_to(b, Version(version)) for b in repair.backends):
            yield f"The repair {name} is for vLLM {repair.releases()}, not for {version}."


def _asks_the_class(version: str) -> bool:
    try:
        return Version(version) >= schedule.ASYNC_BY_CLASS_SINCE
    except InvalidVersion:
        return True


def _names(backends: frozenset[Backend]) -> str:
    return " and ".join(sorted(backend.value for backend in backends)) or "neither"


def rehearse(settings: Settings, phase: int, source: str) -> Settings:
    """Return *settings* with the policy replaced, for ``status --phase``."""
    return replace(settings, phase=phase, phase_source=source)
