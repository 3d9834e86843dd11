"""The step trace: what went into every step of the engine, and what came out of it.

Taken where the scheduler gets the model's output, which every release and every executor passes:
both sides of the executor's boundary meet there. One JSON line a step, beside the capture. Two
traces that differ place a divergence at a step and a request.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_ray_compat.parity.capture import CaptureError, check_schema

SCHEMA = "vllm_ray_compat.trace/1"
ENDING = ".trace.jsonl"

#: vLLM adds a suffix of its own to the id that a request was given.
_ID = re.compile(r"(raycompat-\d+)(-.*)?")


class Step(BaseModel):
    """One step of the engine, as the executor's boundary saw it.

    ``scheduled`` and ``sampled`` map a request (numbered in the order in which requests were first
    scheduled) to the number of tokens it was given, and to the tokens that came of it.
    """

    model_config = ConfigDict(extra="forbid")

    step: int
    workload: str
    at: float = Field(description="Seconds since the trace began.")
    new: dict[str, int] = Field(description="Request -> length of its prompt, in tokens.")
    scheduled: dict[str, int]
    sampled: dict[str, list[int]]
    finished: list[str]
    logprobs: str | None = Field(description="Digest of the step's logprobs; None: none asked.")
    input: str = Field(description="Digest of everything above that went into the step.")
    output: str = Field(description="Digest of everything above that came out of it.")


class Tracer:
    """Writes a line for every step of a scheduler in this process."""

    def __init__(self, scheduler: Any, path: Path) -> None:
        """Put the tracer between *scheduler* and the outputs it gets; see :meth:`close`."""
        self.workload = ""
        self._scheduler = scheduler
        self._update = scheduler.update_from_output
        self._names: dict[str, str] = {}
        self._steps = 0
        self._began = time.monotonic()
        self._file = path.open("w", encoding="utf-8")
        self._file.write(json.dumps({"schema": SCHEMA}) + "\n")
        scheduler.update_from_output = self._traced

    def close(self) -> None:
        """Take the tracer out again."""
        self._scheduler.update_from_output = self._update
        self._file.close()

    def _traced(self, scheduler_output: Any, model_output: Any, *more: Any, **named: Any) -> Any:
        # Before the scheduler handles it: handling may change both.
        step = self._step(scheduler_output, model_output)
        self._file.write(step.model_dump_json() + "\n")
        self._file.flush()
        return self._update(scheduler_output, model_output, *more, **named)

    def _step(self, scheduler_output: Any, model_output: Any) -> Step:
        new = {
            self._name(one.req_id): len(one.prompt_token_ids or ())
            for one in scheduler_output.scheduled_new_reqs
        }
        scheduled = {
            self._name(request): int(tokens)
            for request, tokens in scheduler_output.num_scheduled_tokens.items()
        }
        finished = sorted(self._name(one) for one in scheduler_output.finished_req_ids)
        tokens = getattr(model_output, "sampled_token_ids", None) or []
        sampled = {
            self._name(request): [int(token) for token in tokens[index]]
            for request, index in (getattr(model_output, "req_id_to_index", None) or {}).items()
            if index < len(tokens)
        }
        logprobs = _digest_of_logprobs(getattr(model_output, "logprobs", None))
        step = Step(
            step=self._steps,
            workload=self.workload,
            at=round(time.monotonic() - self._began, 6),
            new=new,
            scheduled=scheduled,
            sampled=dict(sorted(sampled.items())),
            finished=finished,
            logprobs=logprobs,
            input=_digest([new, scheduled, finished]),
            output=_digest([sorted(sampled.items()), logprobs]),
        )
        self._steps += 1
        return step

    def _name(self, request_id: str) -> str:
        match = _ID.fullmatch(request_id)
        own = match.group(1) if match else request_id
        return self._names.setdefault(own, f"r{len(self._names)}")


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _digest_of_logprobs(logprobs: Any) -> str | None:
    """Digest vLLM's lists of token ids, logprobs and ranks: arrays, bit for bit."""
    if logprobs is None:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for part in logprobs:
        if part is None:
            continue
        digest.update(part.tobytes() if hasattr(part, "tobytes") else repr(part).encode())
    return digest.hexdigest()


class StepDivergence(BaseModel):
    """The first step in which two traces differ, and the requests that differ in it."""

    model_config = ConfigDict(extra="forbid")

    step: int
    workload: str
    side: str = Field(description="input: the schedulers differ; output: the models do.")
    requests: list[str]
    reference: Any
    candidate: Any


def first_difference(reference: Path, candidate: Path) -> StepDivergence | None:
    """Return where two traces part; None when they are the same, step by step.

    Raises:
        CaptureError: a file that is no trace; names file, line and what was expected.
    """
    left, right = read_steps(reference), read_steps(candidate)
    while True:
        a, b = next(left, None), next(right, None)
        if a is None and b is None:
            return None
        if a is None or b is None:
            there = a or b
            assert there is not None
            return StepDivergence(
                step=there.step,
                workload=there.workload,
                side="input",
                requests=sorted(there.scheduled),
                reference="step" if a else "end",
                candidate="step" if b else "end",
            )
        for side, fields in (("input", ("new", "scheduled", "finished")), ("output", ("sampled",))):
            if getattr(a, side) == getattr(b, side):
                continue
            one = {name: getattr(a, name) for name in fields}
            other = {name: getattr(b, name) for name in fields}
            if side == "output" and a.sampled == b.sampled:
                one, other = {"logprobs": a.logprobs}, {"logprobs": b.logprobs}
            return StepDivergence(
                step=a.step,
                workload=a.workload,
                side=side,
                requests=_differing(one, other) or sorted(a.scheduled),
                reference=one,
                candidate=other,
            )


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    found: set[str] = set()
    for name, left in one.items():
        right = other[name]
        if isinstance(left, dict) and isinstance(right, dict):
            found |= {k for k in left.keys() | right.keys() if left.get(k) != right.get(k)}
        elif isinstance(left, list) and isinstance(right, list):
            found |= set(left) ^ set(right)
    return sorted(found)


def read_steps(path: Path) -> Iterator[Step]:
    """Yield the steps of a trace, one at a time; a last line that was cut short is passed over.

    Raises:
        CaptureError: not a trace, or a line that is no step.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                if number == 1:
                    check_schema(line, f"{path}:1", "a trace", SCHEMA)
                    continue
                try:
                    yield Step.model_validate_json(line)
                except ValidationError as error:
                    fault = error.errors()[0]
                    place = ".".join(map(str, fault["loc"])) or "the line"
                    raise CaptureError(
                        f"{path}:{number}: not a step of {SCHEMA}: {place}: {fault['msg']}."
                    ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"{path}: cannot be read as a trace: {error}.") from None
