"""Suites: named lists of workloads, kept as JSON files beside this module.

A workload is a batch of requests given to the engine at once, so that both arms see the same
batch composition; the engine options it needs are the suite's, because an arm starts its engine
once.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.known import DeclaredDifference
from vllm_ray_compat.parity.tolerance import Declared, Tolerance, check_fields

SCHEMA = "vllm_ray_compat.suite/1"


class SuiteError(UsageError):
    """A suite file that cannot be used; its text names the place."""


#: Field -> its tolerance; a field that takes none is a mistake.
SuiteTolerances = Annotated[dict[str, Tolerance], AfterValidator(check_fields)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompt(_Strict):
    """The text of a prompt, repeated: ``{"text": "one two ", "times": 40}``."""

    text: str
    times: int = Field(default=1, ge=1)

    def render(self) -> str:
        """Return the whole prompt."""
        return self.text * self.times


class Request(_Strict):
    """One request: its id (unique in the workload), prompt and vLLM sampling parameters."""

    id: str
    prompt: Prompt
    sampling: dict[str, Any] = {}


class Workload(_Strict):
    """A batch of requests."""

    name: str
    about: str
    requests: tuple[Request, ...] = Field(min_length=1)
    tolerances: SuiteTolerances = {}
    known_differences: tuple[DeclaredDifference, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Workload:
        twice = [i for i, n in Counter(r.id for r in self.requests).items() if n > 1]
        if twice:
            raise ValueError(f"request ids must be unique in a workload; twice: {twice}")
        return self


class Suite(_Strict):
    """Workloads with the engine options they need (names as in vLLM's ``EngineArgs``)."""

    schema_: str = Field(alias="schema")
    name: str
    engine: dict[str, Any] = {}
    workloads: tuple[Workload, ...] = Field(min_length=1)
    tolerances: SuiteTolerances = {}
    known_differences: tuple[DeclaredDifference, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Suite:
        if self.schema_ != SCHEMA:
            raise ValueError(f"schema is {self.schema_!r}, this version reads {SCHEMA!r}")
        twice = [i for i, n in Counter(w.name for w in self.workloads).items() if n > 1]
        if twice:
            raise ValueError(f"workload names must be unique; twice: {twice}")
        return self


def tolerances_of(suite: Suite) -> list[Declared]:
    """Return the tolerances that a suite and its workloads declare."""
    return [
        Declared(workload=workload, field=field, tolerance=tolerance, source=source)
        for workload, source, tolerances in (
            (None, "suite", suite.tolerances),
            *((w.name, "workload", w.tolerances) for w in suite.workloads),
        )
        for field, tolerance in tolerances.items()
    ]


def known_differences_of(suite: Suite) -> list[DeclaredDifference]:
    """Return the known differences that a suite and its workloads declare."""
    return [
        *suite.known_differences,
        *(
            known.model_copy(update={"workload": workload.name})
            for workload in suite.workloads
            for known in workload.known_differences
        ),
    ]


def suite_names() -> list[str]:
    """Return the names of the suites that come with this package."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json"))


def load_suite(name: str) -> Suite:
    """Load a suite by name.

    Raises:
        UsageError: there is no such suite (with a suggestion).
        SuiteError: the file does not hold a suite.
    """
    if name not in suite_names():
        raise unknown("suite", name, suite_names())
    file = resources.files(__name__) / f"{name}.json"
    return parse_suite(file.read_text(encoding="utf-8"), str(file))


def parse_suite(text: str, where: str) -> Suite:
    """Parse the text of a suite file; *where* names it in messages.

    Raises:
        SuiteError: not JSON, or not a suite; every fault with its place.
    """
    try:
        return Suite.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise SuiteError(f"{where}:{error.lineno}:{error.colno}: {error.msg}.") from None
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'top level'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise SuiteError(f"{where} is not a suite: {faults}.") from None
