"""What the engine said of a request, as records of a capture, and whether that may be so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.drive import Driven
from vllm_ray_compat.parity.workloads import Request, Workload

#: How a completion ends that says something about the model.
_ANSWERED = ("stop", "length")


def generated(workload: str, driven: Driven) -> cap.Result:
    """Return the record of a request for tokens."""
    if driven.refused is not None:
        return refused(workload, driven.request.id, driven.refused)
    last = driven.last
    return cap.Result(
        workload=workload,
        request=driven.request.id,
        outputs=[
            cap.Output(
                index=one.index,
                token_ids=list(one.token_ids),
                text=one.text,
                finish_reason=one.finish_reason,
                stop_reason=one.stop_reason,
                cumulative_logprob=cap.encode_float(one.cumulative_logprob),
                logprobs=_logprobs(one.logprobs),
            )
            for _, one in sorted(driven.outputs.items())
        ],
        prompt_token_ids=list(last.prompt_token_ids),
        prompt_logprobs=_logprobs(last.prompt_logprobs),
        num_cached_tokens=last.num_cached_tokens,
        token_times_s=[round(at, 6) for at in driven.times_s],
        token_steps=_steps(driven),
        preemptions=driven.preemptions,
    )


def _steps(driven: Driven) -> list[int] | None:
    """Return the steps of a request's tokens; None where they are no matter of the executor.

    A grammar is compiled beside the steps, and an engine core in another process takes its own
    while this one asks for what there is.
    """
    if "structured_outputs" in driven.request.sampling or driven.preemptions is None:
        return None
    return list(driven.steps)


def embedded(workload: str, request: str, output: Any) -> cap.Result:
    """Return the record of a request for an embedding."""
    return cap.Result(
        workload=workload,
        request=request,
        prompt_token_ids=list(output.prompt_token_ids),
        embedding=[cap.encode_float(float(x)) or 0.0 for x in output.outputs.embedding],
    )


def refused(workload: str, request: str, error: Exception) -> cap.Result:
    """Return the record of a request that the engine did not take."""
    return cap.Result(
        workload=workload,
        request=request,
        error=cap.RequestError(type=type(error).__name__, message=str(error)[:2000]),
    )


def fault(request: Request, result: cap.Result) -> str | None:
    """Say what is wrong with how *result* ends: two engines that abort all agree, too.

    Returns:
        A sentence without its subject (``was refused: …``); None when all is well.
    """
    if request.refused:
        return None if result.error is not None else "was to be refused, and was answered"
    if result.error is not None:
        return f"was refused: {result.error.type}: {result.error.message}"
    if result.embedding is not None:
        return "has an embedding with nan" if "nan" in result.embedding else None
    if not result.outputs:
        return "has no output"
    for output in result.outputs:
        if output.cumulative_logprob == "nan":
            return "has logprobs that are nan"
        if request.abort_after is None:
            if output.finish_reason not in _ANSWERED:
                return f"ended with finish reason {output.finish_reason!r}"
        elif len(output.token_ids) < request.abort_after:
            return f"ended before it could be aborted, after {len(output.token_ids)} tokens"
    return None


def unmet(workload: Workload, engine: cap.Engine) -> str | None:
    """Say what *workload* expects of its engine that *engine* is not, or None."""
    if "async-scheduling" in workload.expects and not engine.async_scheduling:
        return f"workload {workload.name}: vLLM has turned async scheduling off"
    return None


def first_fault(workload: Workload, results: Sequence[cap.Result]) -> str | None:
    """Return the first :func:`fault` of a workload as a whole sentence, or None."""
    for request, result in zip(workload.requests, results, strict=True):
        what = fault(request, result)
        if what is not None:
            return f"workload {result.workload}, request {request.id} {what}"
    # Where the scheduler cannot be seen, nothing is known of preemptions.
    seen = [r.preemptions for r in results if r.preemptions is not None]
    if "preemption" in workload.expects and seen and not any(seen):
        return f"workload {workload.name}: no request was preempted; the KV cache is too large"
    if "images" in workload.expects and (what := _unseen_image(workload, results)) is not None:
        return f"workload {workload.name}: {what}"
    return None


def _unseen_image(workload: Workload, results: Sequence[cap.Result]) -> str | None:
    """Say which requests differ in their images alone and answer alike, or that there are none."""
    compared = False
    asked = list(zip(workload.requests, results, strict=True))
    for (one, its), (other, others) in combinations(asked, 2):
        if one.prompt.images == other.prompt.images or _words(one) != _words(other):
            continue
        compared = True
        if (its.outputs, its.embedding) == (others.outputs, others.embedding):
            return f"{one.id} and {other.id} have other images, and one answer"
    return None if compared else "no two requests differ in their images alone"


def _words(request: Request) -> Request:
    """Return *request* without its name and its images."""
    prompt = request.prompt.model_copy(update={"images": ()})
    return request.model_copy(update={"id": "", "prompt": prompt})


def _logprobs(positions: Any) -> cap.Logprobs | None:
    if positions is None:
        return None
    found: cap.Logprobs = []
    for position in positions:
        if position is None:
            found.append(None)
            continue
        entries: list[cap.LogprobEntry] = []
        for token, entry in position.items():
            logprob = cap.encode_float(float(entry.logprob))
            entries.append((int(token), 0.0 if logprob is None else logprob, int(entry.rank or 0)))
        found.append(entries)
    return found
