"""The ``RAYCOMPAT_*`` environment variables: one table, read strictly, all errors at once.

The prefix is our own because vLLM complains of every ``VLLM_*`` name it does not know, and
refuses to start with ``--fail-on-environ-validation``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_ray_compat.errors import UsageError, suggestion
from vllm_ray_compat.executors import repairs as known_repairs
from vllm_ray_compat.names import PLUGIN_NAME, PREFIX
from vllm_ray_compat.schedule import Phase


@dataclass(frozen=True)
class Spec:
    """One variable: its name, what it accepts and what it does (for docs and messages)."""

    name: str
    accepts: str
    meaning: str


SPECS: tuple[Spec, ...] = (
    Spec(
        "RAYCOMPAT_PHASE",
        "0, 1, 2 or 3",
        "The policy in force instead of the one of the installed release, to rehearse a phase. "
        "What the installed vLLM ships stays as it is.",
    ),
    Spec(
        "RAYCOMPAT_STRICT",
        "0 or 1",
        "Every warning of a decision becomes an error: the engine does not start and `status` "
        "exits 1.",
    ),
    Spec(
        "RAYCOMPAT_RESTORE_LEGACY",
        "0 or 1",
        "Where vLLM has removed the legacy executor, flag off selects the one of this package.",
    ),
    Spec(
        "RAYCOMPAT_REPAIRS",
        "all, none, names, or all,-name",
        "Which repairs of vLLM's own executors are applied, each only on releases with the defect: "
        "all (the default), none, names separated by commas, or all but some: all,-name,-name.",
    ),
    Spec(
        "RAYCOMPAT_PLACEMENT_TIMEOUT_S",
        "seconds, more than 0",
        "How long a start waits for its placement group. Unset: 300, and 15 where the nodes there "
        "are can never hold it and no autoscaler runs.",
    ),
    Spec(
        "RAYCOMPAT_CPU",
        "0 or 1",
        "Activates the CPU platform that lets vLLM's CPU build run its Ray executors. Must be "
        "set where Ray is started, too.",
    ),
    Spec(
        "RAYCOMPAT_DISABLE",
        "0 or 1",
        "Plugin and CPU platform do nothing: vLLM's own behaviour.",
    ),
)

NAMES: tuple[str, ...] = tuple(spec.name for spec in SPECS)


class SettingsError(UsageError):
    """One or more ``RAYCOMPAT_*`` variables hold values that are not accepted."""


@dataclass(frozen=True)
class Settings:
    """The parsed variables.

    ``repairs`` holds the names of the repairs to apply, None meaning all but the
    ``unwanted_repairs``; ``placement_timeout_s`` is None where nobody set it; ``unknown`` holds
    names with our prefix that we do not know; ``plugin_allowed`` is whether vLLM's own
    ``VLLM_PLUGINS`` lets this package load.
    """

    phase: int | None = None
    phase_source: str = ""
    strict: bool = False
    restore_legacy: bool = False
    cpu: bool = False
    disable: bool = False
    repairs: frozenset[str] | None = None
    unwanted_repairs: frozenset[str] = frozenset()
    placement_timeout_s: float | None = None
    plugin_allowed: bool = True
    unknown: tuple[str, ...] = ()

    @property
    def inactive(self) -> str | None:
        """Why this package does not route here, or None when it does."""
        if self.disable:
            return "RAYCOMPAT_DISABLE=1"
        if not self.plugin_allowed:
            return f"VLLM_PLUGINS does not allow {PLUGIN_NAME}"
        return None


def describe_unknown(name: str) -> str:
    """Return the message for a variable that has our prefix and an unknown name."""
    return (
        f"The environment variable {name} is set, but vllm_ray_compat knows no such setting."
        f"{suggestion(name, NAMES)} Known: {', '.join(NAMES)}."
    )


def is_on(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the variable *name* is exactly 1; never raises (for use at plugin load)."""
    env = os.environ if environ is None else environ
    return env.get(name, "").strip() == "1"


def _read_repairs(text: str) -> tuple[frozenset[str] | None, frozenset[str], list[str]]:
    """Return the names asked for (None is all), those left out, and what is wrong with *text*."""
    words = [word for part in text.split(",") if (word := part.strip())]
    nothing: frozenset[str] = frozenset()
    if not text or words == ["all"]:
        return None, nothing, []
    if words == ["none"]:
        return nothing, nothing, []
    without = words[:1] == ["all"] and all(word.startswith("-") for word in words[1:])
    names = [word[1:] for word in words[1:]] if without else words
    known = known_repairs.NAMES
    faults = [
        f"RAYCOMPAT_REPAIRS names {name!r} (accepted: all, none, names, or all,-name; the names "
        f"are {', '.join(known)}).{suggestion(name, known)}".removesuffix(".")
        for name in names
        if name not in known
    ]
    if not words:
        faults.append(f"RAYCOMPAT_REPAIRS={text!r} (accepted: all, none, names, or all,-name)")
    if without:
        return None, frozenset(names), faults
    return frozenset(names), nothing, faults


def _read_seconds(text: str) -> float | None:
    """Return the seconds in *text*, None for an empty one.

    Raises:
        ValueError: it is no finite number above 0.
    """
    if not text:
        return None
    seconds = float(text)
    if not 0 < seconds < float("inf"):  # nan, too
        raise ValueError(text)
    return seconds


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read every ``RAYCOMPAT_*`` variable of *environ* (default ``os.environ``).

    An empty value counts as unset.

    Raises:
        SettingsError: one paragraph that names every variable with a bad value.
    """
    env = os.environ if environ is None else environ
    faults: list[str] = []

    def text(name: str) -> str:
        return env.get(name, "").strip()

    def switch(name: str) -> bool:
        value = text(name)
        if value not in ("", "0", "1"):
            faults.append(f"{name}={value!r} (accepted: 0 or 1)")
        return value == "1"

    phase: int | None = None
    phase_text = text("RAYCOMPAT_PHASE")
    if phase_text:
        if phase_text in {str(int(p)) for p in Phase}:
            phase = int(phase_text)
        else:
            faults.append(f"RAYCOMPAT_PHASE={phase_text!r} (accepted: 0, 1, 2 or 3)")
    wanted, unwanted, bad = _read_repairs(text("RAYCOMPAT_REPAIRS"))
    faults += bad
    timeout_s: float | None = None
    timeout_text = text("RAYCOMPAT_PLACEMENT_TIMEOUT_S")
    try:
        timeout_s = _read_seconds(timeout_text)
    except ValueError:
        faults.append(
            f"RAYCOMPAT_PLACEMENT_TIMEOUT_S={timeout_text!r} (accepted: seconds, more than 0)"
        )
    settings = Settings(
        phase=phase,
        phase_source="" if phase is None else f"environment variable RAYCOMPAT_PHASE={phase}",
        strict=switch("RAYCOMPAT_STRICT"),
        restore_legacy=switch("RAYCOMPAT_RESTORE_LEGACY"),
        cpu=switch("RAYCOMPAT_CPU"),
        disable=switch("RAYCOMPAT_DISABLE"),
        repairs=wanted,
        unwanted_repairs=unwanted,
        placement_timeout_s=timeout_s,
        plugin_allowed=(
            (allowed := env.get("VLLM_PLUGINS")) is None or PLUGIN_NAME in allowed.split(",")
        ),
        unknown=tuple(sorted(n for n in env if n.startswith(PREFIX) and n not in NAMES)),
    )
    if faults:
        raise SettingsError(
            "Invalid environment: "
            + "; ".join(faults)
            + ". Correct or remove "
            + ("it." if len(faults) == 1 else "them.")
        )
    return settings
