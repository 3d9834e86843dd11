"""Known differences that a suite declares: what a backend does otherwise by design, and a source.

One that is seen is shown as such and fails nothing; one that is not seen is shown as that; a
difference that nobody declared is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.backends import kind_of
from vllm_ray_compat.parity.stored import Key


class DeclaredDifference(BaseModel):
    """One difference that is expected.

    In a workload it counts for that workload; in a suite for all, or the one it names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str = Field(description="Whose behaviour it is: legacy, v2, mp or module:Class.")
    workload: str | None = Field(default=None, description="None: every workload.")
    request: str | None = Field(default=None, description="None: every request.")
    field: str | None = Field(default=None, description="None: every field of the request.")
    what: str = Field(min_length=1)
    source: str = Field(min_length=1, description="Where it is documented or was measured.")
    since: str | None = Field(default=None, description="First vLLM release that has it.")
    fixed_in: str | None = Field(default=None, description="First release without it again.")

    @field_validator("since", "fixed_in")
    @classmethod
    def _is_release(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                Version(value)
        except InvalidVersion:
            raise ValueError(f"{value!r} is no vLLM release, for example 0.32.0") from None
        return value

    @model_validator(mode="after")
    def _says_what(self) -> DeclaredDifference:
        from vllm_ray_compat.parity.compare import FIELDS

        if self.field is None and self.request is None:
            raise ValueError("a known difference names a field or a request, or both")
        if self.field is not None and self.field not in FIELDS:
            raise ValueError(f"unknown field {self.field!r}; known: {', '.join(FIELDS)}")
        return self

    def is_of(self, header: cap.Header, engine: cap.Engine | None) -> bool:
        """Say whether the arm of a capture has this difference; a backend's class has it, too."""
        if self.backend not in (header.backend, kind_of(header.backend)):
            return False
        if self.since is None and self.fixed_in is None:
            return True
        if engine is None:
            return False
        try:
            release = Version(Version(engine.vllm).base_version)
        except InvalidVersion:  # a build from source without a number
            return False
        return (self.since is None or Version(self.since) <= release) and (
            self.fixed_in is None or release < Version(self.fixed_in)
        )

    def covers(self, key: Key, field: str) -> bool:
        """Say whether a difference of *field* in the request *key* is this one."""
        return (
            self.workload in (None, key.workload)
            and self.request in (None, key.request)
            and self.field in (None, field)
        )


class KnownOfPair:
    """The declared differences that the two arms of a comparison can show, and how often they did.

    Args:
        declared: of the suite and all its workloads.
        arms: header and engine of both captures.
    """

    def __init__(
        self,
        declared: Sequence[DeclaredDifference] = (),
        arms: Sequence[tuple[cap.Header, cap.Engine | None]] = (),
    ) -> None:
        backends = {kind_of(header.backend) for header, _ in arms}
        # Between two runs of one backend there is none: what differs there is noise.
        self.seen = {
            known: 0
            for known in declared
            if len(backends) > 1 and any(known.is_of(*arm) for arm in arms)
        }

    def find(self, key: Key, field: str) -> DeclaredDifference | None:
        """Return the declared difference that *field* of *key* is, and count it."""
        for known in self.seen:
            if known.covers(key, field):
                self.seen[known] += 1
                return known
        return None
