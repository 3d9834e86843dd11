"""Known defects and pitfalls that no repair puts right: data, and which of it applies here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, model_validator

from vllm_ray_compat.doctor import data_files
from vllm_ray_compat.doctor.findings import Level, Strict
from vllm_ray_compat.schedule import RELEASES, Backend


def _is_release(text: str) -> str:
    if text not in RELEASES:
        raise ValueError(f"{text} is no release of the phase schedule")
    return text


def _is_specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(str(error)) from error
    return text


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


Release = Annotated[str, AfterValidator(_is_release)]
Pattern = Annotated[str, AfterValidator(_compiles)]


class Advisory(Strict):
    """One defect or pitfall: whom it concerns, what one sees, what to do, who says so."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    backends: tuple[Backend, ...] = Field(min_length=1)
    since: Release
    fixed_in: Release | None
    ray: Annotated[str, AfterValidator(_is_specifier)] | None = Field(
        default=None, description="Only with these releases of Ray."
    )
    if_set: dict[str, Pattern] = Field(
        default_factory=dict,
        description="Only where one of these variables has a value that the pattern is found in.",
    )
    level: Literal[Level.NOTE, Level.WARNING]
    symptom: str
    do: str
    sources: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> Advisory:
        if self.fixed_in is not None and Version(self.fixed_in) <= Version(self.since):
            raise ValueError(f"{self.name} is fixed in {self.fixed_in}, and since {self.since}")
        return self

    def set_here(self, environ: Mapping[str, str]) -> list[str]:
        """Return which variables of :attr:`if_set` have such a value."""
        return [
            name
            for name, pattern in self.if_set.items()
            if re.search(pattern, environ.get(name, ""))
        ]

    def applies(
        self, backend: Backend, vllm: str, ray: str | None, environ: Mapping[str, str]
    ) -> bool:
        """Say whether it concerns *backend* on these releases.

        A vLLM that is no release (a nightly, a fork) is taken for the newest; without a Ray that
        can be told, what is about one release of Ray does not apply.
        """
        try:
            base = Version(Version(vllm).base_version)
        except InvalidVersion:
            base = Version(RELEASES[-1])
        return (
            backend in self.backends
            and Version(self.since) <= base
            and (self.fixed_in is None or base < Version(self.fixed_in))
            and (self.ray is None or (ray is not None and SpecifierSet(self.ray).contains(ray)))
            and (not self.if_set or bool(self.set_here(environ)))
        )


class _File(Strict):
    schema_: Literal["vllm_ray_compat.advisories/1"] = Field(alias="schema")
    advisories: tuple[Advisory, ...]

    @model_validator(mode="after")
    def _names_are_unique(self) -> _File:
        data_files.check_names(advisory.name for advisory in self.advisories)
        return self


@cache
def advisories() -> tuple[Advisory, ...]:
    """Return all of the data file, in its order."""
    return data_files.load("advisories", _File).advisories
