"""Past the first different token: what the candidate thinks of the way the reference went.

After it two completions answer different prompts, and nothing more can be compared. So the workload
is run once more on the candidate, its tokens forced to the reference's (:mod:`.forcing`). Its own
first choice at every later position shows whether one near tie has tipped, or whether everything is
different from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.workloads import Request, Suite

#: Where a request carries its tokens: a key of the sampling parameters' ``extra_args``.
EXTRA = "raycompat_forced"
#: What the engine argument ``logits_processors`` takes.
PROCESSOR = "vllm_ray_compat.parity.forcing:ForceTokens"

#: Sampling parameters that stand in the way of a forced token, or end a request before its end.
_IN_THE_WAY = frozenset(
    {
        *("stop", "stop_token_ids", "min_tokens", "structured_outputs", "bad_words", "logit_bias"),
        *("allowed_token_ids", "include_stop_str_in_output"),
    }
)


class Forced(BaseModel):
    """One request of the candidate, forced along the reference's tokens.

    ``agreed`` counts the positions at which the reference's token was the candidate's own first
    choice. The largest logprob difference is of the reference's tokens, in nats; None where the
    reference has no logprobs.
    """

    model_config = ConfigDict(extra="forbid")

    topology: str
    candidate: str
    workload: str
    request: str
    positions: int
    agreed: int
    first_disagreement: int | None
    largest_difference: float | None = Field(description="Nats.")
    largest_at: int | None


def forced_suite(
    suite: Suite, profile: str, diverged: Iterable[tuple[str, str]], reference: cap.Capture
) -> Suite | None:
    """Return the workloads in which requests diverged, forced to what *reference* answered.

    All requests of such a workload are in it, because a batch is what was compared.

    Args:
        suite: that was run.
        profile: of the arm.
        diverged: workload and request of each that has another token.
        reference: the capture of the arm that is taken as right.

    Returns:
        A suite of this one profile; None when nothing can be forced (several completions of one
        request, speculative decoding, embeddings).
    """
    if "speculative_config" in suite.profile(profile).engine:
        return None  # vLLM refuses logits processors beside draft tokens
    answers = {(r.workload, r.request): r for r in reference.results}
    wanted = {name for name, _ in diverged}
    workloads = []
    for workload in suite.of_profile(profile):
        if workload.name not in wanted or workload.kind != "generate":
            continue
        requests = tuple(
            forced
            for request in workload.requests
            if (forced := _forced(request, answers.get((workload.name, request.id)))) is not None
        )
        if requests:
            workloads.append(
                workload.model_copy(update={"requests": requests, "before": (), "expects": ()})
            )
    if not workloads:
        return None
    return suite.model_copy(update={"workloads": tuple(workloads)})


def _forced(request: Request, answer: cap.Result | None) -> Request | None:
    if request.refused or answer is None or len(answer.outputs) != 1:
        return None
    tokens = answer.outputs[0].token_ids
    kept = {k: v for k, v in request.sampling.items() if k not in _IN_THE_WAY}
    sampling: dict[str, Any] = {
        **kept,
        "max_tokens": len(tokens),
        "ignore_eos": True,
        "logprobs": max(int(kept.get("logprobs") or 0), 1),
        "extra_args": {EXTRA: list(tokens)},
    }
    return (
        request.model_copy(update={"sampling": sampling, "abort_after": None}) if tokens else None
    )


def compare_forced(
    topology: str, candidate: str, reference: cap.Capture, forced: cap.Capture
) -> list[Forced]:
    """Compare a forced run of the candidate with the reference, position by position.

    Raises:
        ValueError: a token is not the one it was forced to be; then forcing did not work.
    """
    answers = {(r.workload, r.request): r for r in reference.results}
    return [
        _compare(topology, candidate, answers[one.workload, one.request], one)
        for one in forced.results
        if (one.workload, one.request) in answers
    ]


def _compare(topology: str, candidate: str, answer: cap.Result, forced: cap.Result) -> Forced:
    right, mine = answer.outputs[0], forced.outputs[0]
    if right.token_ids != mine.token_ids:
        raise ValueError(
            f"workload {forced.workload}, request {forced.request}: the candidate was forced to "
            f"{len(right.token_ids)} tokens and has others; its vLLM does not apply the processor"
        )
    ranks = [entries[0][2] if entries else 0 for entries in mine.logprobs or []]
    differences = _differences(right.logprobs, mine.logprobs)
    largest = max(differences.items(), key=lambda item: (item[1], -item[0]), default=(None, None))
    return Forced(
        topology=topology,
        candidate=candidate,
        workload=forced.workload,
        request=forced.request,
        positions=len(ranks),
        agreed=sum(rank == 1 for rank in ranks),
        first_disagreement=next((i for i, rank in enumerate(ranks) if rank != 1), None),
        largest_difference=largest[1],
        largest_at=largest[0],
    )


def _differences(right: cap.Logprobs | None, mine: cap.Logprobs | None) -> dict[int, float]:
    """Return position -> absolute difference of the logprobs of the token that came."""
    found: dict[int, float] = {}
    for position, (a, b) in enumerate(zip(right or [], mine or [], strict=False)):
        if a and b and isinstance(a[0][1], float) and isinstance(b[0][1], float):
            found[position] = abs(a[0][1] - b[0][1])
    return found
