"""Drive a live engine step by step, and keep what a user would see of every request.

Not ``LLM.generate``: that returns answers alone. Here also when each token came, in which step, and
what was refused; and a request can be aborted in mid-flight.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from vllm_ray_compat.parity.workloads import Request

#: Request ids of one engine are never used twice, not even for a request that was refused.
_numbers = count()


@dataclass
class Driven:
    """One request and what came of it.

    Attributes:
        request: as the suite has it.
        outputs: completion index -> its last state.
        last: the engine's last word on the request; None when it was refused.
        refused: the error with which the engine refused it.
        aborted: it was aborted, as the suite asks.
        times_s: seconds from handing over the batch until each token of output 0 arrived.
        steps: the step, from 0, that brought each token of output 0.
        preemptions: how often it was preempted; None when the scheduler is in another process.
    """

    request: Request
    outputs: dict[int, Any] = field(default_factory=dict)
    last: Any = None
    refused: Exception | None = None
    aborted: bool = False
    times_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    preemptions: int | None = None


def drive(engine: Any, prepared: Sequence[tuple[Request, dict[str, Any]]]) -> list[Driven]:
    """Hand all requests over at once, and step until none is left.

    Args:
        engine: vLLM's ``LLMEngine``.
        prepared: each request with the keyword arguments of ``add_request`` but for its id; or
            with ``{"error": exception}`` when it could not even be built.

    Raises:
        Exception: whatever the engine raises in a step; the engine is dead then.
    """
    began = time.monotonic()
    driven: dict[str, Driven] = {}
    alive: set[str] = set()
    for request, arguments in prepared:
        name = f"raycompat-{next(_numbers)}"
        one = driven[name] = Driven(request)
        if "error" in arguments:
            one.refused = arguments["error"]
            continue
        try:
            engine.add_request(request_id=name, **arguments)
        except Exception as error:  # a refusal is an answer; which error it is gets compared
            one.refused = error
        else:
            alive.add(name)
    if _scheduler(engine) is not None:
        for one in driven.values():
            one.preemptions = 0
    step = 0
    while alive:
        outputs = engine.step()
        now = time.monotonic() - began
        _count_preemptions(engine, driven)
        for output in outputs:
            if output.request_id not in alive:
                continue  # the last word on one that was aborted
            one = driven[output.request_id]
            _keep(one, output, now, step)
            if output.finished:
                alive.discard(output.request_id)
            elif _is_due(one):
                engine.abort_request([output.request_id])
                one.aborted = True
                alive.discard(output.request_id)
        step += 1
    return list(driven.values())


def _keep(one: Driven, output: Any, now: float, step: int) -> None:
    one.last = output
    for completion in output.outputs:
        one.outputs[completion.index] = completion
    first = one.outputs.get(0)
    if first is not None:
        new = len(first.token_ids) - len(one.steps)
        one.times_s += [now] * new
        one.steps += [step] * new


def _count_preemptions(engine: Any, driven: dict[str, Driven]) -> None:
    """Ask the scheduler, where it is in this process, how often each request was preempted."""
    for request in getattr(_scheduler(engine), "requests", {}).values():
        # vLLM adds a suffix of its own to the id it was given.
        one = driven.get("-".join(request.request_id.split("-")[:2]))
        if one is not None:
            one.preemptions = max(one.preemptions or 0, int(request.num_preemptions))


def _scheduler(engine: Any) -> Any:
    """Return the scheduler; None when the engine core is another process."""
    return getattr(getattr(engine.engine_core, "engine_core", None), "scheduler", None)


def _is_due(one: Driven) -> bool:
    """Say whether the suite wants the request aborted by now."""
    limit = one.request.abort_after
    return limit is not None and len(one.steps) >= limit
