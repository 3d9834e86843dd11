"""Faults of logprobs: one off by a little, or no number any more."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from vllm_ray_compat.parity.capture import Capture, LogprobEntry
from vllm_ray_compat.parity.faults.fault import Fault, Kind, fault, outputs

#: Nats; small, and far above what one bit is worth.
OFF_BY = 1e-3

_At = tuple[int, int, int, int]


def _places(capture: Capture) -> Iterator[_At]:
    for r, o, output in outputs(capture):
        for position, entries in enumerate(output.logprobs or []):
            for e, entry in enumerate(entries or []):
                if isinstance(entry[1], float):
                    yield r, o, position, e


def _last(places: list[_At]) -> _At:
    """The last position of the first completion that has logprobs."""
    first = places[0][:2]
    return [p for p in places if p[:2] == first and p[3] == 0][-1]


def _entries(capture: Capture, at: _At) -> list[LogprobEntry]:
    r, o, position, _ = at
    return (capture.results[r].outputs[o].logprobs or [])[position] or []


def _logprob(capture: Capture, at: _At, _random: Random) -> Fault:
    r, o, position, e = at
    entries = _entries(capture, at)
    token, logprob, rank = entries[e]
    entries[e] = (token, float(logprob) - OFF_BY, rank)
    return fault("logprob", "logprobs", capture.results[r], position, o)


def _nan(capture: Capture, at: _At, _random: Random) -> Fault:
    r, o, position, e = at
    entries = _entries(capture, at)
    entries[e] = (entries[e][0], "nan", entries[e][2])
    return fault("nan", "logprobs", capture.results[r], position, o)


def _prompt_places(capture: Capture) -> Iterator[tuple[int, int, int]]:
    for r, result in enumerate(capture.results):
        for position, entries in enumerate(result.prompt_logprobs or []):
            for e, entry in enumerate(entries or []):
                if isinstance(entry[1], float):
                    yield r, position, e


def _prompt_logprob(capture: Capture, at: tuple[int, int, int], _random: Random) -> Fault:
    r, position, e = at
    entries = (capture.results[r].prompt_logprobs or [])[position] or []
    token, logprob, rank = entries[e]
    entries[e] = (token, float(logprob) - OFF_BY, rank)
    return fault("prompt-logprob", "prompt_logprobs", capture.results[r], position)


KINDS = (
    Kind("logprob", f"one logprob is off by {OFF_BY}", _places, _logprob, _last),
    Kind("nan", "one logprob is nan instead of a number", _places, _nan, _last),
    Kind(
        "prompt-logprob",
        f"one logprob of a prompt is off by {OFF_BY}",
        _prompt_places,
        _prompt_logprob,
    ),
)
