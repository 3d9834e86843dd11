"""Lines by which a log tells what went wrong: data."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from pydantic import Field, model_validator

from vllm_ray_compat.doctor import data_files
from vllm_ray_compat.doctor.advisories import Pattern
from vllm_ray_compat.doctor.findings import Level, Strict


class Signature(Strict):
    """One kind of line: how to know it, what it comes from, what to do, who says so."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    level: Literal[Level.NOTE, Level.WARNING, Level.PROBLEM]
    contains: tuple[str, ...] = Field(min_length=1, description="Texts; one of them is in it.")
    pattern: Pattern | None = Field(default=None, description="And so is this, if given.")
    cause: str
    do: str
    sources: tuple[str, ...] = Field(min_length=1)
    example: str = Field(description="Such a line.")

    @model_validator(mode="after")
    def _knows_its_example(self) -> Signature:
        if not self.matches(self.example):
            raise ValueError(f"{self.name} does not match its own example")
        if any("\n" in text for text in (*self.contains, self.example)):
            raise ValueError(f"{self.name} is about more than one line")
        return self

    def matches(self, line: str) -> bool:
        """Say whether *line* is one."""
        return any(text in line for text in self.contains) and (
            self.pattern is None or re.search(self.pattern, line) is not None
        )


class _File(Strict):
    schema_: Literal["vllm_ray_compat.signatures/1"] = Field(alias="schema")
    signatures: tuple[Signature, ...]

    @model_validator(mode="after")
    def _are_told_apart(self) -> _File:
        data_files.check_names(signature.name for signature in self.signatures)
        for one in self.signatures:
            for other in self.signatures:
                if one is not other and other.matches(one.example):
                    raise ValueError(f"the example of {one.name} is one of {other.name}, too")
        return self


@cache
def signatures() -> tuple[Signature, ...]:
    """Return all of the data file, in its order."""
    return data_files.load("signatures", _File).signatures
