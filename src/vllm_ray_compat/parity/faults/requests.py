"""Faults of whole requests: lost, added, in another order, or answered with another's answer."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from vllm_ray_compat.parity.capture import Capture, Output, Result
from vllm_ray_compat.parity.divergence import sequence
from vllm_ray_compat.parity.faults.fault import Fault, Kind, fault, place_in_workload


def _neighbours(capture: Capture) -> Iterator[int]:
    for index in range(len(capture.results) - 1):
        if capture.results[index].workload == capture.results[index + 1].workload:
            yield index


def _order(capture: Capture, at: int, _random: Random) -> Fault:
    results = capture.results
    one, other = results[at], results[at + 1]
    place = place_in_workload(capture, at)
    results[at], results[at + 1] = other, one
    made = fault("order", "order", one, place)
    return made.model_copy(update={"also": [(other.workload, other.request)]})


def _first_token(result: Result) -> list[int]:
    return result.outputs[0].token_ids if result.outputs else []


def _other_answers(capture: Capture) -> Iterator[tuple[int, int]]:
    """Yield pairs of results of one workload whose completions are different."""
    for index, one in enumerate(capture.results):
        for further in range(index + 1, min(index + 20, len(capture.results))):
            other = capture.results[further]
            if other.workload != one.workload:
                continue
            if (
                _first_token(one)
                and _first_token(other)
                and _first_token(one) != _first_token(other)
            ):
                yield index, further


def _swapped_answers(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    one, other = (capture.results[i] for i in at)
    first = sequence(_first_token(one), _first_token(other))
    assert first is not None
    one.outputs, other.outputs = other.outputs, one.outputs
    if [o.index for o in one.outputs] != [o.index for o in other.outputs]:
        made = fault("swapped-answers", "outputs", one, min(len(one.outputs), len(other.outputs)))
    else:
        made = fault("swapped-answers", "token_ids", one, first.position, 0)
    return made.model_copy(update={"also": [(other.workload, other.request)]})


def _stale_cache(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    """The request continues another one's text: its cached blocks were not its own."""
    one, other = (capture.results[i] for i in at)
    first = sequence(_first_token(one), _first_token(other))
    assert first is not None
    one.num_cached_tokens = (one.num_cached_tokens or 0) + 16
    answer = Output.model_validate(other.outputs[0].model_dump())
    answer.index = one.outputs[0].index
    one.outputs[0] = answer
    return fault("stale-cache", "token_ids", one, first.position, 0)


def _every(capture: Capture) -> Iterator[int]:
    yield from range(len(capture.results))


def _missing(capture: Capture, at: int, _random: Random) -> Fault:
    place = place_in_workload(capture, at)
    return fault("missing", "present", capture.results.pop(at), place)


def _extra(capture: Capture, at: int, _random: Random) -> Fault:
    copied = capture.results[at].model_copy(deep=True)
    names = {r.request for r in capture.results if r.workload == copied.workload}
    copied.request = next(n for i in range(len(names) + 1) if (n := f"extra-{i}") not in names)
    capture.results.insert(at, copied)
    return fault("extra", "present", copied, place_in_workload(capture, at))


def _refused(capture: Capture) -> Iterator[int]:
    for index, result in enumerate(capture.results):
        if result.error is not None:
            yield index


def _answered_error(capture: Capture, at: int, _random: Random) -> Fault:
    result = capture.results[at]
    result.error = None
    result.outputs = [
        Output(
            index=0,
            token_ids=[1, 2, 3],
            text="an answer",
            finish_reason="length",
            stop_reason=None,
            cumulative_logprob=None,
            logprobs=None,
        )
    ]
    return fault("answered-error", "error", result, None)


def _other_error(capture: Capture, at: int, _random: Random) -> Fault:
    error = capture.results[at].error
    assert error is not None
    error.message = f"something else: {error.message}"
    return fault("other-error", "error", capture.results[at], None)


def _middle(places: list[int]) -> int:
    return places[len(places) // 2]


KINDS = (
    Kind("order", "two results came in the other order", _neighbours, _order),
    Kind(
        "swapped-answers", "two requests got each other's answer", _other_answers, _swapped_answers
    ),
    Kind("stale-cache", "a request hit another one's cached blocks", _other_answers, _stale_cache),
    Kind("missing", "a request was dropped", _every, _missing, _middle),
    Kind("extra", "there is a request that nobody made", _every, _extra),
    Kind(
        "answered-error", "a request that must be refused was answered", _refused, _answered_error
    ),
    Kind("other-error", "a request was refused for another reason", _refused, _other_error),
)
