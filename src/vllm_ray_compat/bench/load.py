"""Drive a live engine with a batch, or with requests that arrive at a rate, and time every token.

An engine is anything that :class:`Engine` describes, with outputs as vLLM's ``LLMEngine`` has them
for ``RequestOutputKind.DELTA``: the tokens of the step alone.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol


class Engine(Protocol):
    """What is needed of ``vllm.LLMEngine``, and the making of requests."""

    def add(self, request: str, tokens: int) -> None:
        """Hand over a request that generates *tokens* tokens."""

    def step(self) -> Sequence[Any]:
        """Run a step, or wait for the next one of another process; its ``RequestOutput``s."""

    def busy(self) -> bool:
        """Say whether a request is unfinished."""


@dataclass
class Times:
    """When the tokens of a request came; ``token_s`` holds a time for each token."""

    due_s: float
    token_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Time to first token, from when the request was due."""
        return self.token_s[0] - self.due_s

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies; of tokens that one step gave, 0."""
        return [later - earlier for earlier, later in pairwise(self.token_s)]


class MissingTokensError(RuntimeError):
    """A request did not generate what it had to: nothing measured of it would mean anything."""


def batch(engine: Engine, size: int, tokens: int, repeats: int, name: str) -> dict[str, float]:
    """Decode *size* requests at once, *repeats* times.

    Returns:
        ``tokens_per_s``, ``steps_per_s`` and ``step_p50_us`` of decode alone (from when the last
        request has its first token), and ``ttft_p50_ms``, ``itl_p50_ms``, ``itl_p99_ms``.

    Raises:
        MissingTokensError: a request ended early.
    """
    ttft, itl, steps = [], [], []
    decoded, decoding_s = 0, 0.0
    for repeat in range(repeats):
        times: dict[str, Times] = {}
        for number in range(size):
            request = f"{name}-{repeat}-{number}"
            times[request] = Times(time.perf_counter())
            engine.add(request, tokens)
        ended = _drain(engine, times)
        _check(times, tokens)
        first = max(one.token_s[0] for one in times.values())
        after = [at for at in ended if at >= first]
        steps += [later - earlier for earlier, later in pairwise(after)]
        decoding_s += after[-1] - after[0]
        decoded += sum(at > first for one in times.values() for at in one.token_s)
        ttft += [one.ttft_s for one in times.values()]
        itl += [gap for one in times.values() for gap in one.itl_s]
    return {
        "tokens_per_s": decoded / decoding_s,
        "steps_per_s": len(steps) / decoding_s,
        "step_p50_us": statistics.median(steps) * 1e6,
        **_latencies(ttft, itl),
    }


def arrivals(
    engine: Engine,
    rate: float,
    requests: int,
    tokens: int,
    name: str,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Let *requests* requests arrive as a Poisson process of *rate* a second.

    Times count from when a request was due, also where the engine was busy with a step then: a slow
    engine cannot slow its own load down.

    Returns:
        ``requests_per_s``, ``ttft_p50_ms``, ``ttft_p99_ms``, ``itl_p50_ms``, ``itl_p99_ms``.

    Raises:
        MissingTokensError: a request ended early.
    """
    draw = random.Random(0)  # the same arrivals for every arm, in every turn
    gaps = [draw.expovariate(rate) for _ in range(requests)]
    began = time.perf_counter()
    due, at = [], began
    for gap in gaps:
        at += gap
        due.append(at)
    times: dict[str, Times] = {}
    while len(times) < requests or engine.busy():
        while len(times) < requests and due[len(times)] <= time.perf_counter():
            number = len(times)
            times[f"{name}-{number}"] = Times(due[number])
            engine.add(f"{name}-{number}", tokens)
        if engine.busy():
            _step(engine, times)
        elif len(times) < requests:
            sleep(max(0.0, due[len(times)] - time.perf_counter()))
    _check(times, tokens)
    ttft = [one.ttft_s for one in times.values()]
    last = max(one.token_s[-1] for one in times.values())
    return {
        "requests_per_s": requests / (last - due[0]),
        "ttft_p99_ms": _quantile(ttft, 99) * 1e3,
        **_latencies(ttft, [gap for one in times.values() for gap in one.itl_s]),
    }


def _drain(engine: Engine, times: dict[str, Times]) -> list[float]:
    """Step until nothing is left; returns when each step that gave tokens ended."""
    ended = []
    while engine.busy():
        at = _step(engine, times)
        if at is not None:
            ended.append(at)
    return ended


def _step(engine: Engine, times: dict[str, Times]) -> float | None:
    outputs = engine.step()
    at = time.perf_counter()
    given = 0
    for output in outputs:
        count = sum(len(one.token_ids) for one in output.outputs)
        times[output.request_id].token_s += [at] * count
        given += count
    return at if given else None


def _check(times: dict[str, Times], tokens: int) -> None:
    for request, one in times.items():
        if len(one.token_s) != tokens:
            raise MissingTokensError(f"request {request}: {len(one.token_s)} tokens, not {tokens}")


def _latencies(ttft: list[float], itl: list[float]) -> dict[str, float]:
    return {
        "ttft_p50_ms": statistics.median(ttft) * 1e3,
        "itl_p50_ms": statistics.median(itl) * 1e3,
        "itl_p99_ms": _quantile(itl, 99) * 1e3,
    }


def _quantile(values: list[float], percent: int) -> float:
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
