"""Tolerances of logprobs. None is ever assumed: a suite or the command line declares them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.errors import UsageError, unknown

#: The fields that can have one. Tokens, texts and reasons are equal or they are not.
TOLERANT_FIELDS = ("logprobs", "cumulative_logprob", "prompt_logprobs")

#: The word on the command line for the defaults of the captures' dtype.
AUTO = "auto"

#: dtype -> (absolute, relative), as ``torch.testing.assert_close`` has them.
_OF_DTYPE = {
    "float16": (1e-5, 1e-3),
    "bfloat16": (1e-5, 1.6e-2),
    "float32": (1e-5, 1.3e-6),
}


class Tolerance(BaseModel):
    """Two logprobs (nats) agree when ``|a - b| <= absolute + relative * |a|``, a the reference's.

    With ``per_token`` the absolute part counts once for each token of a sum.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    absolute: float = Field(default=0.0, ge=0)
    relative: float = Field(default=0.0, ge=0)
    per_token: bool = False

    def allows(self, reference: float | str | None, other: float | str | None, tokens: int) -> bool:
        """Say whether two values agree; what is no finite number agrees with itself alone."""
        if not isinstance(reference, float) or not isinstance(other, float):
            return type(reference) is type(other) and reference == other
        absolute = self.absolute * (tokens if self.per_token else 1)
        return abs(reference - other) <= absolute + self.relative * abs(reference)


#: Field -> its tolerance.
FieldTolerances = Mapping[str, Tolerance]


def check_fields(tolerances: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *tolerances* as they are.

    Raises:
        ValueError: one is for a field that takes none (for pydantic, which tells the place).
    """
    for field in tolerances:
        if field not in TOLERANT_FIELDS:
            raise ValueError(
                f"{field!r} takes no tolerance; fields with one: {', '.join(TOLERANT_FIELDS)}"
            )
    return tolerances


class Declared(BaseModel):
    """One tolerance in force, and who declared it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workload: str | None = Field(description="None: all workloads.")
    field: str
    tolerance: Tolerance
    source: str = Field(description="'suite', 'workload', 'command line' or 'auto (DTYPE)'.")


class Tolerances:
    """The tolerances of a comparison; the command line goes before a workload, that before a suite.

    Args:
        declared: in any order.
    """

    def __init__(self, declared: Iterable[Declared] = ()) -> None:
        self.declared = tuple(declared)
        self._cache: dict[str, dict[str, Tolerance]] = {}

    def of(self, workload: str) -> FieldTolerances:
        """Return the tolerances of the fields of a workload; what has none is exact."""
        if workload not in self._cache:
            order = {"auto": 0, "suite": 1, "workload": 2, "command line": 3}
            ranked = sorted(self.declared, key=lambda d: order[d.source.partition(" (")[0]])
            self._cache[workload] = {
                d.field: d.tolerance for d in ranked if d.workload in (None, workload)
            }
        return self._cache[workload]


def parse_tolerances(texts: Sequence[str]) -> tuple[list[Declared], bool]:
    """Parse ``FIELD=ABS[,REL]`` and ``auto``; returns the tolerances and whether auto is wanted.

    Raises:
        UsageError: another form, another field, or not a number from 0 up.
    """
    declared: list[Declared] = []
    auto = False
    for text in texts:
        if text == AUTO:
            auto = True
            continue
        field, equals, values = text.partition("=")
        if not equals:
            raise UsageError(
                f"--tolerance {text!r} is neither 'auto' nor FIELD=ABS[,REL]. Example: "
                "--tolerance logprobs=1e-4,1e-3"
            )
        if field not in TOLERANT_FIELDS:
            raise unknown("field with a tolerance", field, TOLERANT_FIELDS)
        try:
            numbers = [float(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2) or not all(math.isfinite(n) and n >= 0 for n in numbers):
            raise UsageError(
                f"--tolerance {text!r}: expected one or two numbers from 0 up after {field}=, the "
                "absolute and the relative one."
            )
        tolerance = Tolerance(absolute=numbers[0], relative=numbers[1] if numbers[1:] else 0.0)
        declared.append(
            Declared(workload=None, field=field, tolerance=tolerance, source="command line")
        )
    return declared, auto


def auto_tolerances(dtypes: Sequence[str | None]) -> list[Declared]:
    """Return the defaults for captures of these dtypes; of two, the looser ones.

    The tolerance of a cumulative logprob is the sum of its tokens' (logprobs have one sign).

    Raises:
        UsageError: a capture does not say its dtype, or there is no default for it.
    """
    for dtype in dtypes:
        if dtype not in _OF_DTYPE:
            raise UsageError(
                f"--tolerance auto has no default for dtype {dtype or 'unknown'} (it has for "
                f"{', '.join(_OF_DTYPE)}). Name tolerances: --tolerance logprobs=ABS,REL"
            )
    absolute = max(_OF_DTYPE[str(dtype)][0] for dtype in dtypes)
    relative = max(_OF_DTYPE[str(dtype)][1] for dtype in dtypes)
    names = " and ".join(dict.fromkeys(map(str, dtypes)))
    return [
        Declared(
            workload=None,
            field=field,
            tolerance=Tolerance(
                absolute=absolute, relative=relative, per_token=field == "cumulative_logprob"
            ),
            source=f"auto ({names})",
        )
        for field in TOLERANT_FIELDS
    ]
