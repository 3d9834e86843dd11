"""Seeded faults: alter a capture so that the comparison must turn red. They prove it can fail."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.capture import Capture, Result


class Fault(BaseModel):
    """What was altered, and where it must be found."""

    model_config = ConfigDict(extra="forbid")

    kind: str
    field: str
    workload: str
    request: str
    position: int | None


class FaultError(UsageError):
    """No result of the capture can carry the fault."""


def inject(capture: Capture, kind: str) -> tuple[Capture, Fault]:
    """Return a copy of *capture* with the fault *kind* in it, and where it is.

    Raises:
        UsageError: there is no such fault (with a suggestion).
        FaultError: the capture holds no result that can carry it.
    """
    if kind not in _FAULTS:
        raise unknown("fault", kind, FAULTS)
    altered = capture.model_copy(deep=True)
    fault = _FAULTS[kind](altered.results)
    if fault is None:
        raise FaultError(
            f"The fault {kind!r} needs a result that can carry it, and the candidate's capture "
            "has none. Choose a suite with logprobs and several requests, for example smoke."
        )
    return altered, fault


def _token(results: list[Result]) -> Fault | None:
    for result in results:
        for output in result.outputs:
            if len(output.token_ids) >= 3:
                position = len(output.token_ids) // 2
                output.token_ids[position] ^= 1
                return _fault("token", "token_ids", result, position)
    return None


def _logprob(results: list[Result]) -> Fault | None:
    for result in results:
        for output in result.outputs:
            for position, entries in reversed(list(enumerate(output.logprobs or []))):
                if entries and isinstance(entries[0][1], float):
                    token, logprob, rank = entries[0]
                    entries[0] = (token, float(logprob) - 1e-3, rank)
                    return _fault("logprob", "logprobs", result, position)
    return None


def _order(results: list[Result]) -> Fault | None:
    places: dict[str, int] = {}
    for index, (one, other) in enumerate(pairwise(results)):
        place = places.get(one.workload, 0)
        places[one.workload] = place + 1
        if one.workload == other.workload:
            results[index], results[index + 1] = other, one
            return _fault("order", "order", one, place)
    return None


def _finish(results: list[Result]) -> Fault | None:
    for result in results:
        for output in result.outputs:
            if output.finish_reason == "length":
                output.finish_reason = "stop"
                return _fault("finish", "finish_reason", result, None)
    return None


def _missing(results: list[Result]) -> Fault | None:
    if not results:
        return None
    at = len(results) // 2
    place = sum(1 for result in results[:at] if result.workload == results[at].workload)
    lost = results.pop(at)
    return _fault("missing", "present", lost, place)


def _fault(kind: str, field: str, result: Result, position: int | None) -> Fault:
    return Fault(
        kind=kind, field=field, workload=result.workload, request=result.request, position=position
    )


_FAULTS: dict[str, Callable[[list[Result]], Fault | None]] = {
    "token": _token,
    "logprob": _logprob,
    "order": _order,
    "finish": _finish,
    "missing": _missing,
}

#: The kinds that ``--inject-fault`` takes.
FAULTS: tuple[str, ...] = tuple(_FAULTS)
