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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packaging.version import Version

from vllm_ray_compat import deprecations, schedule
from vllm_ray_compat.errors import EXIT_DIFFERENCE, RaycompatError
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
        executor: its import path, ``module:Class``.
        provider: ``vllm`` or ``vllm_ray_compat``: whose class that is.
        phase: the policy in force.
        policy: where the phase came from.
        flag: the flag as read, with its source.
        vllm: the release the decision is for.
        reasons: why, one sentence each, in the order they applied.
        notes: what to know that needs no action now.
        warnings: what needs action; errors under ``RAYCOMPAT_STRICT=1``.
        strict: whether they are.
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

    @property
    def next_change(self) -> dict[str, str] | None:
        """The next release that changes something, and what; None in the last phase."""
        row = schedule.next_row(Version(self.vllm))
        if row is None:
            return None
        here = schedule.row_for(Version(self.vllm))
        return {"release": str(row.since), "what": _describe_change(here, row)}

    def enforce(self) -> None:
        """Raise what ``RAYCOMPAT_STRICT=1`` makes an error.

        Raises:
            StrictModeError: strict, and there are warnings.
        """
        if self.strict and self.warnings:
            raise StrictModeError(self.warnings)

    def one_line(self) -> str:
        """Return the line that is logged when an engine starts."""
        return (
            f"Ray executor backend {self.backend.value}: {self.executor} (provider "
            f"{self.provider}), phase {int(self.phase)} from {self.policy}, flag {self.flag}"
        )

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
            "repairs": [],
            "next_change": self.next_change,
            "strict": self.strict,
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
        UnknownReleaseError: *vllm* names no release the schedule covers.
        VllmNotFoundError: *vllm* is None and no vLLM is installed.
    """
    if settings is None:
        settings = read_settings(environ)
    if flag is None:
        flag = read_flag(environ)
    if vllm is None:
        vllm = find_vllm()
    if isinstance(vllm, Installation):
        release = schedule.parse_release(vllm.version)
        ships = vllm.ships
        origin = f"the installed vLLM {vllm.version}"
    else:
        release = schedule.parse_release(vllm)
        ships = None
        origin = f"vLLM {vllm}, named by the caller"
    return _decide(release, ships, origin, flag, settings)


def _decide(
    release: Version,
    probed: frozenset[Backend] | None,
    origin: str,
    flag: Flag,
    settings: Settings,
) -> Decision:
    row = schedule.row_for(release)
    ships = row.ships if probed is None else probed
    reasons: list[str] = []
    notes: list[str] = []
    warnings: list[deprecations.RaycompatWarning] = []

    if schedule.is_beyond(release):
        notes.append(
            f"vLLM {release} is newer than {schedule.RELEASES[-1]}, the newest release the "
            "schedule was measured on: its last row is used."
        )
    if probed is not None and probed != row.ships:
        notes.append(
            f"{origin} ships {_names(probed)} where the schedule says {_names(row.ships)}: what "
            "is on disk is used."
        )
    if settings.phase is None:
        policy_row, policy = row, origin
    else:
        policy_row, policy = schedule.row_for_phase(settings.phase), settings.phase_source

    backend = _choose(policy_row, flag, settings, reasons, notes, warnings)
    provider = PROVIDER_VLLM if backend in ships else PROVIDER_COMPAT
    table = schedule.VLLM_EXECUTORS if backend in ships else schedule.COMPAT_EXECUTORS
    if provider == PROVIDER_COMPAT:
        reasons.append(f"vLLM {release} does not ship {backend.value}: this package provides it")
    for name in settings.unknown:
        warnings.append(deprecations.UnknownSettingWarning(describe_unknown(name)))
    return Decision(
        backend=backend,
        executor=table[backend],
        provider=provider,
        phase=policy_row.phase,
        policy=policy,
        flag=flag,
        vllm=str(release),
        reasons=tuple(reasons),
        notes=tuple(notes),
        warnings=tuple(warnings),
        strict=settings.strict,
    )


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


def _names(backends: frozenset[Backend]) -> str:
    return " and ".join(sorted(backend.value for backend in backends)) or "neither"


def rehearse(settings: Settings, phase: int, source: str) -> Settings:
    """Return *settings* with the policy replaced, for ``status --phase``."""
    return replace(settings, phase=phase, phase_source=source)
