"""Suites: named lists of workloads, kept as JSON files beside this module.

A workload is a batch of requests given to the engine at once, so that both arms see the same
batch composition. The engine options it needs are the suite's, or those of a profile: an arm starts
its engine once, and there is an arm a profile.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import resources
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.known import DeclaredDifference
from vllm_ray_compat.parity.tolerance import Declared, Tolerance, check_fields
from vllm_ray_compat.parity.workloads.images import Image

SCHEMA = "vllm_ray_compat.suite/1"

#: The profile of workloads that name none: the suite's own engine options.
DEFAULT_PROFILE = "default"
_PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class SuiteError(UsageError):
    """A suite file that cannot be used; its text names the place."""


#: Field -> its tolerance; a field that takes none is a mistake.
SuiteTolerances = Annotated[dict[str, Tolerance], AfterValidator(check_fields)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Embeddings(_Strict):
    """Prompt embeddings made of numbers: the same on every machine and release for one *seed*."""

    tokens: int = Field(ge=1)
    seed: int = 0

    def rows(self, hidden_size: int) -> list[list[float]]:
        """Return one row of *hidden_size* numbers in [-1, 1) for each token."""
        # Python's generator and not torch's: that one promises nothing from release to release.
        numbers = Random(self.seed)
        return [[2 * numbers.random() - 1 for _ in range(hidden_size)] for _ in range(self.tokens)]


#: What a prompt can be.
_PROMPTS = ("text", "token_ids", "messages", "embeddings")


class Prompt(_Strict):
    """A text or token ids, repeated: ``{"text": "one two ", "times": 40}``; chat messages; or
    embeddings, for an engine with ``enable_prompt_embeds``: ``{"embeddings": {"tokens": 12}}``.

    ``images`` go with all but embeddings: ``"images": [{"size": [64, 48], "seed": 1}]``; where a
    model wants placeholders, they are in the text, and the images come in their order.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    embeddings: Embeddings | None = None
    times: int = Field(default=1, ge=1)
    images: tuple[Image, ...] = ()

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Prompt:
        given = [name for name in _PROMPTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"a prompt is one of {', '.join(_PROMPTS)}; here: {given}")
        if self.times != 1 and (self.text is None and self.token_ids is None):
            raise ValueError(f"times repeats a text or token ids; {given[0]} stand once")
        if self.images and self.embeddings is not None:
            raise ValueError("images go with a text, token ids or messages, not with embeddings")
        return self

    def render(self) -> Any:
        """Return what vLLM takes, but for images: a text, or a dictionary with token ids.

        Messages are for the chat template of the model, and embeddings for its size, which only
        the engine has: both are returned as they are. Images are put beside it there, too.
        """
        if self.text is not None:
            return self.text * self.times
        if self.token_ids is not None:
            return {"prompt_token_ids": list(self.token_ids) * self.times}
        if self.embeddings is not None:
            return self.embeddings
        return [dict(message) for message in self.messages or ()]


#: How a request ends that went as it should.
Ending = Literal["answer", "refusal", "abort"]


class Request(_Strict):
    """One request: its id (unique in the workload), prompt and vLLM sampling parameters.

    ``abort_after``: abort it once it has that many tokens. ``lora``: the name of an adapter of
    the workload's profile. ``refused``: the engine must refuse it, and with the same error.
    """

    id: str
    prompt: Prompt
    sampling: dict[str, Any] = {}
    abort_after: int | None = Field(default=None, ge=1)
    lora: str | None = None
    refused: bool = False

    @property
    def ending(self) -> Ending:
        """How it must end."""
        if self.refused:
            return "refusal"
        return "answer" if self.abort_after is None else "abort"


class Operation(_Strict):
    """Something done to the engine before a workload's requests are handed over.

    ``sleep`` and ``wake_up`` are vLLM's; ``reset_prefix_cache``, too; ``scale_weights`` has every
    worker multiply its weights by ``factor``, through collective RPC.
    """

    do: Literal["sleep", "wake_up", "reset_prefix_cache", "scale_weights"]
    level: int = 1
    factor: float = 1.0


class Unavailable(_Strict):
    """What cannot run a workload: named, never left out in silence.

    ``on`` is a platform (``cpu``, ``cuda``) that cannot, whatever the executor; ``backend`` an
    executor that cannot by design, which is a known difference; with both, it is that executor
    there. ``vllm`` is a version specifier, empty for every release.
    """

    on: str | None = None
    backend: Literal["legacy", "v2", "mp"] | None = None
    vllm: str = ""
    why: str = Field(min_length=1)
    source: str = Field(min_length=1)

    @field_validator("vllm")
    @classmethod
    def _is_specifier(cls, value: str) -> str:
        try:
            SpecifierSet(value)
        except InvalidSpecifier:
            raise ValueError(f"{value!r} is no version specifier, for example <0.33") from None
        return value

    @model_validator(mode="after")
    def _says_what(self) -> Unavailable:
        if self.on is None and self.backend is None:
            raise ValueError("what cannot run it? Name a platform (on), a backend, or both")
        return self

    def applies(self, backend: str, platform: str, vllm: str) -> bool:
        """Say whether this holds for an executor on *platform* with release *vllm*."""
        return (
            self.on in (None, platform)
            and self.backend in (None, backend)
            and SpecifierSet(self.vllm).contains(vllm, prereleases=True)
        )


class Workload(_Strict):
    """A batch of requests.

    ``expects``: what must have happened, or the workload proves nothing. ``preemption``: of at
    least one request. ``images``: requests that differ in their images alone answer differently.
    ``async-scheduling``: the engine schedules ahead, which vLLM may turn off by itself.
    """

    name: str
    about: str
    profile: str = DEFAULT_PROFILE
    kind: Literal["generate", "embed"] = "generate"
    before: tuple[Operation, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    expects: tuple[Literal["preemption", "images", "async-scheduling"], ...] = ()
    requests: tuple[Request, ...] = Field(min_length=1)
    tolerances: SuiteTolerances = {}
    known_differences: tuple[DeclaredDifference, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Workload:
        twice = [i for i, n in Counter(r.id for r in self.requests).items() if n > 1]
        if twice:
            raise ValueError(f"request ids must be unique in a workload; twice: {twice}")
        return self


class Profile(_Strict):
    """A set of engine options of its own: each is an engine more to start in every arm.

    ``engine``: options beside those of the suite, and before them. ``model``: another model than
    the run's, when the workloads need one (``tiny-moe``, ``tiny-vision``). ``engines``: how many
    live at once on the host, each running the workloads. ``lora``: names of adapters that are made
    for the model.
    """

    about: str
    engine: dict[str, Any] = {}
    model: str | None = None
    engines: int = Field(default=1, ge=1)
    lora: tuple[str, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()


class Suite(_Strict):
    """Workloads with the engine options they need (names as in vLLM's ``EngineArgs``)."""

    schema_: str = Field(alias="schema")
    name: str
    engine: dict[str, Any] = {}
    profiles: dict[str, Profile] = {}
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
        bad = [name for name in self.profiles if not _PROFILE_NAME.fullmatch(name)]
        if bad or DEFAULT_PROFILE in self.profiles:
            raise ValueError(
                f"profile names are lower case letters, digits and dashes, and {DEFAULT_PROFILE!r} "
                f"is the suite's own options; here: {sorted(self.profiles)}"
            )
        for workload in self.workloads:
            profile = self.profiles.get(workload.profile)
            if profile is None and workload.profile != DEFAULT_PROFILE:
                raise ValueError(
                    f"workload {workload.name!r} wants profile {workload.profile!r}; there are "
                    f"{sorted([DEFAULT_PROFILE, *self.profiles])}"
                )
            adapters = () if profile is None else profile.lora
            for request in workload.requests:
                if request.lora is not None and request.lora not in adapters:
                    raise ValueError(
                        f"workload {workload.name!r}, request {request.id!r} wants adapter "
                        f"{request.lora!r}, which its profile does not name"
                    )
        return self

    def used_profiles(self) -> list[str]:
        """Return the profiles that workloads use, the suite's own options first."""
        return sorted({w.profile for w in self.workloads}, key=lambda p: (p != DEFAULT_PROFILE, p))

    def of_profile(self, name: str) -> list[Workload]:
        """Return the workloads of a profile, in their order."""
        return [workload for workload in self.workloads if workload.profile == name]

    def profile(self, name: str) -> Profile:
        """Return a profile with the suite's own options merged in."""
        if name == DEFAULT_PROFILE:
            return Profile(about="The suite's own options.", engine=self.engine)
        found = self.profiles[name]
        return found.model_copy(update={"engine": {**self.engine, **found.engine}})


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
    """Load a suite by name, or a file of the caller's own (``path/to/suite.json``).

    Raises:
        UsageError: there is no such suite (with a suggestion).
        SuiteError: the file cannot be read, or does not hold a suite.
    """
    if name.endswith(".json"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SuiteError(f"{name}: cannot be read as a suite: {error}.") from None
        return parse_suite(text, name)
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
