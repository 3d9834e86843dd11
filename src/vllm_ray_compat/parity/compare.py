"""Compare two captures request by request and field by field, exactly.

At the same topology, release and dtype both executors run the same kernels on the same batches,
so the default is bit for bit; nothing is rounded and nothing is tolerated here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from vllm_ray_compat.parity import capture as cap

#: The fields of a request, in the order they are compared and shown.
FIELDS: tuple[str, ...] = (
    "present",
    "order",
    "prompt_token_ids",
    "outputs",
    "token_ids",
    "text",
    "finish_reason",
    "stop_reason",
    "logprobs",
    "cumulative_logprob",
    "prompt_logprobs",
    "num_cached_tokens",
    "error",
    "embedding",
    "token_steps",
    "preemptions",
)

#: What two captures must have in common to be compared at all.
_SAME = ("suite", "topology")


class Divergence(BaseModel):
    """The first place where two values differ.

    ``position`` counts tokens (characters for ``text``) from 0 and is None where the field is
    one value; ``output`` is the completion's index, for requests with several.
    """

    model_config = ConfigDict(extra="forbid")

    output: int | None = None
    position: int | None = None
    reference: Any = None
    candidate: Any = None


class Comparison(BaseModel):
    """One field of one request, compared between two arms."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    reference: str
    candidate: str
    workload: str
    request: str
    field: str
    result: Literal["equal", "different"]
    first_divergence: Divergence | None = None


def same_float(a: float | str | None, b: float | str | None) -> bool:
    """Return whether two floats are the same bits (so nan equals nan, and 0.0 is not -0.0)."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return type(a) is type(b) and a == b


def compare(
    topology: str, reference: cap.Capture, candidate: cap.Capture, candidate_name: str | None = None
) -> list[Comparison]:
    """Compare every field of every request of two captures.

    Args:
        topology: for the records.
        reference: what is taken as right.
        candidate: what is judged.
        candidate_name: how it is called; default its backend.

    Raises:
        CaptureError: the captures are of different suites or topologies.
    """
    for name in _SAME:
        a, b = getattr(reference.header, name), getattr(candidate.header, name)
        if a != b:
            raise cap.CaptureError(
                f"The captures cannot be compared: the reference is of {name} {a!r}, the "
                f"candidate of {b!r}."
            )
    names = (reference.header.backend, candidate_name or candidate.header.backend)
    left = {(r.workload, r.request): r for r in reference.results}
    right = {(r.workload, r.request): r for r in candidate.results}
    left_places = _places(reference.results)
    right_places = _places(candidate.results)
    found: list[Comparison] = []
    for key in [*left, *(key for key in right if key not in left)]:
        workload, request = key

        def record(
            field: str,
            divergence: Divergence | None,
            workload: str = workload,
            request: str = request,
        ) -> None:
            found.append(
                Comparison(
                    topology=topology,
                    reference=names[0],
                    candidate=names[1],
                    workload=workload,
                    request=request,
                    field=field,
                    result="equal" if divergence is None else "different",
                    first_divergence=divergence,
                )
            )

        one, other = left.get(key), right.get(key)
        if one is None or other is None:
            place = (left_places if one is not None else right_places)[key]
            record(
                "present",
                Divergence(position=place, reference=one is not None, candidate=other is not None),
            )
            continue
        record("present", None)
        record("order", _order(key, left_places, right_places, set(left) & set(right)))
        for field in FIELDS[2:]:
            record(field, _FIELD_CHECKS[field](one, other))
    return found


def _places(results: Sequence[cap.Result]) -> dict[tuple[str, str], int]:
    """Return the place of each request within its workload, in the order of the capture."""
    counts: dict[str, int] = {}
    places: dict[tuple[str, str], int] = {}
    for result in results:
        places[result.workload, result.request] = counts.get(result.workload, 0)
        counts[result.workload] = counts.get(result.workload, 0) + 1
    return places


def _order(
    key: tuple[str, str],
    left: dict[tuple[str, str], int],
    right: dict[tuple[str, str], int],
    shared: set[tuple[str, str]],
) -> Divergence | None:
    """Compare the rank of a request among those both captures hold (a loss shifts nobody)."""
    a = sum(1 for k in shared if k[0] == key[0] and left[k] < left[key])
    b = sum(1 for k in shared if k[0] == key[0] and right[k] < right[key])
    return None if a == b else Divergence(position=a, reference=a, candidate=b)


def _whole(field: str) -> Callable[[cap.Result, cap.Result], Divergence | None]:
    def check(a: cap.Result, b: cap.Result) -> Divergence | None:
        left, right = getattr(a, field), getattr(b, field)
        return None if left == right else Divergence(reference=left, candidate=right)

    return check


def _sequence(left: Sequence[Any] | None, right: Sequence[Any] | None) -> Divergence | None:
    if left is None or right is None:
        if left is right:
            return None
        return Divergence(
            reference="absent" if left is None else "present",
            candidate="absent" if right is None else "present",
        )
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return Divergence(position=position, reference=a, candidate=b)
    if len(left) == len(right):
        return None
    shorter = min(len(left), len(right))
    return Divergence(
        position=shorter,
        reference=left[shorter] if len(left) > shorter else "end",
        candidate=right[shorter] if len(right) > shorter else "end",
    )


def _logprobs(left: cap.Logprobs | None, right: cap.Logprobs | None) -> Divergence | None:
    if left is None or right is None:
        return _sequence(left, right)
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a is None or b is None:
            if a is not b:
                return Divergence(position=position, reference=a, candidate=b)
            continue
        for one, other in zip(a, b, strict=False):
            if one[0] != other[0] or one[2] != other[2] or not same_float(one[1], other[1]):
                return Divergence(position=position, reference=one, candidate=other)
        if len(a) != len(b):
            return Divergence(position=position, reference=a, candidate=b)
    return _sequence([None] * len(left), [None] * len(right))


def _per_output(
    field: str, differs: Callable[[Any, Any], Divergence | None]
) -> Callable[[cap.Result, cap.Result], Divergence | None]:
    def check(a: cap.Result, b: cap.Result) -> Divergence | None:
        for index, (left, right) in enumerate(zip(a.outputs, b.outputs, strict=False)):
            divergence = differs(getattr(left, field), getattr(right, field))
            if divergence is not None:
                return divergence.model_copy(update={"output": index})
        return None

    return check


def _floats(
    left: Sequence[float | str] | None, right: Sequence[float | str] | None
) -> Divergence | None:
    for position, (a, b) in enumerate(zip(left or (), right or (), strict=False)):
        if not same_float(a, b):
            return Divergence(position=position, reference=a, candidate=b)
    blank = [None if numbers is None else [None] * len(numbers) for numbers in (left, right)]
    return _sequence(*blank)


def _value(left: Any, right: Any) -> Divergence | None:
    same = type(left) is type(right) and left == right
    return None if same else Divergence(reference=left, candidate=right)


def _float(left: Any, right: Any) -> Divergence | None:
    return None if same_float(left, right) else Divergence(reference=left, candidate=right)


_FIELD_CHECKS: dict[str, Callable[[cap.Result, cap.Result], Divergence | None]] = {
    "prompt_token_ids": lambda a, b: _sequence(a.prompt_token_ids, b.prompt_token_ids),
    "outputs": lambda a, b: _sequence([o.index for o in a.outputs], [o.index for o in b.outputs]),
    "token_ids": _per_output("token_ids", _sequence),
    "text": _per_output("text", _sequence),
    "finish_reason": _per_output("finish_reason", _value),
    "stop_reason": _per_output("stop_reason", _value),
    "logprobs": _per_output("logprobs", _logprobs),
    "cumulative_logprob": _per_output("cumulative_logprob", _float),
    "prompt_logprobs": lambda a, b: _logprobs(a.prompt_logprobs, b.prompt_logprobs),
    "num_cached_tokens": _whole("num_cached_tokens"),
    "error": _whole("error"),
    "embedding": lambda a, b: _floats(a.embedding, b.embedding),
    "preemptions": _whole("preemptions"),
    "token_steps": lambda a, b: _sequence(a.token_steps, b.token_steps),
}


def differences(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return those that differ."""
    return [c for c in comparisons if c.result == "different"]
