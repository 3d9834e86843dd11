"""What a check tells, and what an examination is made of; ``doctor --json`` prints the latter."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA: Final = "vllm_ray_compat.doctor/1"


class Level(str, enum.Enum):
    """How much a finding matters; a problem makes the exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Group(str, enum.Enum):
    """What a check looks at."""

    CONFIGURATION = "configuration"
    MACHINE = "machine"
    CLUSTER = "cluster"
    LOG = "log"


class Strict(BaseModel):
    """Base of what is written by hand or published: no field that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Finding(Strict):
    """One thing found: how much it matters, what, where, what to do, and who says so."""

    level: Level
    what: str = Field(description="One or two sentences.")
    where: str | None = Field(
        default=None, description="A variable, a node, a line of a log, a path."
    )
    do: str | None = Field(default=None, description="Never missing in a warning or a problem.")
    sources: tuple[str, ...] = Field(default=(), description="Reports, or documentation.")
    details: dict[str, Any] = Field(
        default_factory=dict, description="The same in numbers and names, for programs."
    )

    @model_validator(mode="after")
    def _says_what_to_do(self) -> Finding:
        if self.level in (Level.WARNING, Level.PROBLEM) and not self.do:
            raise ValueError(f"a {self.level.value} says what to do: {self.what}")
        return self


def ok(what: str, where: str | None = None, **details: Any) -> Finding:
    """Return that something holds."""
    return Finding(level=Level.OK, what=what, where=where, details=details)


def note(what: str, where: str | None = None, do: str | None = None, **details: Any) -> Finding:
    """Return what is good to know and needs no action."""
    return Finding(level=Level.NOTE, what=what, where=where, do=do, details=details)


def warning(what: str, where: str | None, do: str, *sources: str, **details: Any) -> Finding:
    """Return what may go wrong."""
    return Finding(
        level=Level.WARNING, what=what, where=where, do=do, sources=sources, details=details
    )


def problem(what: str, where: str | None, do: str, *sources: str, **details: Any) -> Finding:
    """Return what is wrong."""
    return Finding(
        level=Level.PROBLEM, what=what, where=where, do=do, sources=sources, details=details
    )


class Checked(Strict):
    """A check: what it has found, or why it was left out."""

    name: str
    group: Group
    asks: str
    left_out: str | None = Field(description="The reason; None: the check was made.")
    findings: tuple[Finding, ...] = ()


class Examination(Strict):
    """Everything that was looked at."""

    schema_: Literal["vllm_ray_compat.doctor/1"] = Field(default=SCHEMA, alias="schema")
    vllm: str | None = Field(description="The release installed here; None: no vLLM.")
    backend: str | None = Field(description='What serves "ray" here: legacy or v2.')
    ray_address: str | None = Field(description="The cluster that was looked at.")
    counts: dict[Level, int]
    checks: tuple[Checked, ...]
    exit_code: int = Field(description="0 holds, 1 a problem, 3 what was asked for cannot be done.")

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``doctor --json`` prints."""
        return self.model_dump(mode="json", by_alias=True)


def count(checks: tuple[Checked, ...]) -> dict[Level, int]:
    """Return how many findings of each level there are."""
    seen = Counter(finding.level for checked in checks for finding in checked.findings)
    return {level: seen[level] for level in Level}
