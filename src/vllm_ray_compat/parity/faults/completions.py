"""Faults of completions: tokens, texts, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from vllm_ray_compat.parity.capture import Capture, Output, Result
from vllm_ray_compat.parity.faults.fault import Fault, Kind, fault, outputs

_At = tuple[int, int, int]


def _token_places(capture: Capture) -> Iterator[_At]:
    for r, o, output in outputs(capture):
        for position in range(len(output.token_ids)):
            yield r, o, position


def _middle(places: list[_At]) -> _At:
    """Of the first completion of three tokens or more, the middle."""
    lengths: dict[tuple[int, int], int] = {}
    for r, o, _ in places:
        lengths[r, o] = lengths.get((r, o), 0) + 1
    for (r, o), length in lengths.items():
        if length >= 3:
            return r, o, length // 2
    return places[0]


def _token(capture: Capture, at: _At, _random: Random) -> Fault:
    r, o, position = at
    capture.results[r].outputs[o].token_ids[position] ^= 1
    return fault("token", "token_ids", capture.results[r], position, o)


def _seed(capture: Capture, at: _At, random: Random) -> Fault:
    """From a position on, the tokens and what comes from them are others."""
    r, o, position = at
    result = capture.results[r]
    output = result.outputs[o]
    for i in range(position, len(output.token_ids)):
        output.token_ids[i] ^= 1 + random.randrange(7)
        if output.logprobs and i < len(output.logprobs) and output.logprobs[i]:
            entries = output.logprobs[i] or []
            _, logprob, rank = entries[0]
            entries[0] = (output.token_ids[i], float(logprob) - random.random(), rank + 1)
            if i > position:  # at the position itself both saw the same text
                entries[1:] = [(t, float(p) - random.random(), k) for t, p, k in entries[1:]]
    output.text = output.text[: len(output.text) // 2] + "~" + output.text[len(output.text) // 2 :]
    if isinstance(output.cumulative_logprob, float):
        output.cumulative_logprob -= random.random()
    return fault("seed", "token_ids", result, position, o)


def _truncated(capture: Capture, at: _At, _random: Random) -> Fault:
    r, o, position = at
    result = capture.results[r]
    output = result.outputs[o]
    kept = len(output.text) * position // len(output.token_ids)
    del output.token_ids[position:]
    if output.logprobs is not None:
        del output.logprobs[position:]
    output.text = output.text[:kept]
    return fault("truncated", "token_ids", result, position, o)


def _text_places(capture: Capture) -> Iterator[_At]:
    for r, o, output in outputs(capture):
        for position in range(len(output.text)):
            yield r, o, position


def _text(capture: Capture, at: _At, _random: Random) -> Fault:
    r, o, position = at
    output = capture.results[r].outputs[o]
    new = "#" if output.text[position] != "#" else "%"
    output.text = output.text[:position] + new + output.text[position + 1 :]
    return fault("text", "text", capture.results[r], position, o)


def _finish_places(capture: Capture) -> Iterator[tuple[int, int]]:
    for r, o, output in outputs(capture):
        if output.finish_reason == "length":
            yield r, o


def _finish(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    r, o = at
    capture.results[r].outputs[o].finish_reason = "stop"
    return fault("finish", "finish_reason", capture.results[r], None, o)


def _every_output(capture: Capture) -> Iterator[tuple[int, int]]:
    for r, o, _ in outputs(capture):
        yield r, o


def _stop_reason(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    r, o = at
    output = capture.results[r].outputs[o]
    output.stop_reason = 7 if output.stop_reason != 7 else "7"
    return fault("stop-reason", "stop_reason", capture.results[r], None, o)


def _duplicated(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    r, o = at
    result = capture.results[r]
    # A further completion with an index that is there already, or one that took another's.
    if len(result.outputs) > 1:
        at_index = o if o > 0 else 1
        result.outputs[at_index].index = result.outputs[at_index - 1].index
        return fault("duplicated-output", "outputs", result, at_index)
    result.outputs.append(Output.model_validate(result.outputs[o].model_dump()))
    return fault("duplicated-output", "outputs", result, 1)


def _prompt_places(capture: Capture) -> Iterator[tuple[int, int]]:
    for r, result in enumerate(capture.results):
        for position in range(len(result.prompt_token_ids or [])):
            yield r, position


def _prompt_token(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    r, position = at
    result: Result = capture.results[r]
    assert result.prompt_token_ids is not None
    result.prompt_token_ids[position] ^= 1
    return fault("prompt-token", "prompt_token_ids", result, position)


KINDS = (
    Kind("token", "one token of a completion is another", _token_places, _token, _middle),
    Kind("seed", "a request was sampled with another seed", _token_places, _seed, _middle),
    Kind("truncated", "a completion ends early", _token_places, _truncated, _middle),
    Kind("text", "one character of a text is another, its tokens are not", _text_places, _text),
    Kind("finish", "a completion ended for another reason", _finish_places, _finish),
    Kind("stop-reason", "another stop string or token ended it", _every_output, _stop_reason),
    Kind("duplicated-output", "two completions have one index", _every_output, _duplicated),
    Kind("prompt-token", "one token of a prompt is another", _prompt_places, _prompt_token),
)
