"""What differs between two results of one request, field by field, and what follows from what.

Exact by default: at the same topology, release and dtype both executors run the same kernels on
the same batches. A tolerance applies only where one is declared.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.tolerance import FieldTolerances, Tolerance

#: ``follows``: different, and the consequence of another difference of the same request.
#: ``known``: different, and declared. ``noted``: told, and not judged.
Outcome = Literal["equal", "different", "follows", "within-tolerance", "known", "noted"]


class Divergence(BaseModel):
    """The first place where two values differ.

    ``position`` counts tokens (characters for ``text``) from 0 and is None where the field is
    one value; ``output`` is the place of the completion, for requests with several. The ranks
    and gaps are those of a pair of different tokens, where logprobs were recorded.
    """

    model_config = ConfigDict(extra="forbid")

    output: int | None = None
    position: int | None = None
    reference: Any = None
    candidate: Any = None
    reference_rank: int | None = Field(
        default=None, description="Rank of the reference's token among the candidate's logprobs."
    )
    candidate_rank: int | None = Field(
        default=None, description="Rank of the candidate's token among the reference's logprobs."
    )
    reference_gap: float | str | None = Field(
        default=None, description="Own token's logprob minus the other's, at the reference (nats)."
    )
    candidate_gap: float | str | None = Field(
        default=None, description="Own token's logprob minus the other's, at the candidate (nats)."
    )
    tie: bool | None = Field(
        default=None, description="Whether the two logprobs are equal wherever both are known."
    )
    difference: float | None = Field(
        default=None, description="Absolute difference of the two logprobs (nats)."
    )
    largest_difference: float | None = Field(
        default=None, description="The largest one of this field (nats), over equal tokens."
    )


@dataclass(frozen=True)
class Finding:
    """How one field came out; ``follows`` names the difference it is a consequence of."""

    result: Outcome
    divergence: Divergence | None = None
    follows: str | None = None


EQUAL = Finding("equal")


def same_float(a: float | str | None, b: float | str | None) -> bool:
    """Return whether two floats are the same bits (so nan equals nan, and 0.0 is not -0.0)."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return type(a) is type(b) and a == b


def compare_results(
    reference: cap.Result, candidate: cap.Result, tolerances: FieldTolerances
) -> dict[str, Finding]:
    """Compare two results of one request; returns the finding of every field but present, order.

    A prompt of other tokens, or a refusal on one side, explains everything after it. So does a
    token that diverged, for its completion: what comes behind it was made from another text.
    """
    found = dict.fromkeys(_FIELDS, EQUAL)

    prompt = sequence(reference.prompt_token_ids, candidate.prompt_token_ids)
    error = _error(reference.error, candidate.error)
    refused = (reference.error is None) != (candidate.error is None)
    # A request may be refused before its prompt was turned into tokens.
    prompt_unknown = refused and None in (reference.prompt_token_ids, candidate.prompt_token_ids)
    cause: str | None = None
    if prompt is not None and not prompt_unknown:
        found["prompt_token_ids"] = Finding("different", prompt)
        cause = told("prompt_token_ids", prompt)
    if error is not None:
        found["error"] = _or_follows(error, cause)
        if refused:
            cause = cause or "error"
    if prompt is not None and prompt_unknown:
        found["prompt_token_ids"] = Finding("follows", prompt, cause)

    tolerance = tolerances.get("prompt_logprobs")
    finding = _logprobs(reference.prompt_logprobs, candidate.prompt_logprobs, tolerance, None)
    before_prompt = (
        prompt is not None
        and prompt.position is not None
        and finding.divergence is not None
        and finding.divergence.position is not None
        and finding.divergence.position < prompt.position
    )
    found["prompt_logprobs"] = finding if before_prompt else _explained(finding, cause)

    cached = _whole(reference.num_cached_tokens, candidate.num_cached_tokens)
    if cached is not None:
        found["num_cached_tokens"] = _or_follows(cached, cause)
    indices = sequence([o.index for o in reference.outputs], [o.index for o in candidate.outputs])
    if indices is not None:
        found["outputs"] = _or_follows(indices, cause)

    for place, (one, other) in enumerate(zip(reference.outputs, candidate.outputs, strict=False)):
        for field, finding in _compare_outputs(one, other, tolerances, cause).items():
            if _worse(finding, found[field]):
                divergence = finding.divergence
                assert divergence is not None
                divergence = divergence.model_copy(update={"output": place})
                follows = finding.follows
                if follows is not None and len(reference.outputs) > 1 and follows != cause:
                    follows += f" of output {place}"
                found[field] = Finding(finding.result, divergence, follows)

    # How the request went through the scheduler depends on its tokens.
    tokens = found["token_ids"]
    if cause is None and tokens.divergence is not None:
        cause = told("token_ids", tokens.divergence)
    for field, divergence in (
        ("embedding", _floats(reference.embedding, candidate.embedding)),
        ("token_steps", sequence(reference.token_steps, candidate.token_steps)),
        ("preemptions", _whole(reference.preemptions, candidate.preemptions)),
    ):
        if divergence is None:
            continue
        at = divergence.position
        since = tokens.divergence.position if tokens.divergence is not None else None
        before = field == "token_steps" and at is not None and since is not None and at < since
        found[field] = _or_follows(divergence, None if before else cause)
    return found


_FIELDS = (
    *("error", "prompt_token_ids", "outputs", "token_ids", "text", "finish_reason"),
    *("stop_reason", "logprobs", "cumulative_logprob", "prompt_logprobs", "num_cached_tokens"),
    *("embedding", "token_steps", "preemptions"),
)

_SEVERITY: Mapping[Outcome, int] = {"equal": 0, "within-tolerance": 1, "follows": 2, "different": 3}


def _worse(new: Finding, old: Finding) -> bool:
    return _SEVERITY[new.result] > _SEVERITY[old.result]


def _compare_outputs(
    one: cap.Output, other: cap.Output, tolerances: FieldTolerances, cause: str | None
) -> dict[str, Finding]:
    """Compare two completions; only what is not equal is returned."""
    found: dict[str, Finding] = {}
    earlier = cause
    tokens = sequence(one.token_ids, other.token_ids)
    diverged: int | None = None
    if tokens is not None:
        tokens = _with_depth(tokens, one.logprobs, other.logprobs)
        found["token_ids"] = _or_follows(tokens, cause)
        diverged = tokens.position
        cause = cause or told("token_ids", tokens)

    logprobs = _logprobs(one.logprobs, other.logprobs, tolerances.get("logprobs"), diverged)
    found["logprobs"] = logprobs if earlier is None else _explained(logprobs, earlier)

    tolerance = tolerances.get("cumulative_logprob")
    left, right = one.cumulative_logprob, other.cumulative_logprob
    if not same_float(left, right):
        within = (
            tokens is None
            and tolerance is not None
            and tolerance.allows(left, right, len(one.token_ids))
        )
        difference = _difference(left, right)
        divergence = Divergence(
            reference=left,
            candidate=right,
            difference=difference,
            largest_difference=difference,
        )
        found["cumulative_logprob"] = (
            Finding("within-tolerance", divergence) if within else _or_follows(divergence, cause)
        )

    text = sequence(one.text, other.text)
    if text is not None:
        found["text"] = _or_follows(text, cause)
    for field in ("finish_reason", "stop_reason"):
        different = _whole(getattr(one, field), getattr(other, field))
        if different is not None:
            found[field] = _or_follows(different, cause)
    return {field: finding for field, finding in found.items() if finding.result != "equal"}


def _or_follows(divergence: Divergence, cause: str | None) -> Finding:
    if cause is None:
        return Finding("different", divergence)
    return Finding("follows", divergence, cause)


def _explained(finding: Finding, cause: str | None) -> Finding:
    if finding.result != "different" or cause is None:
        return finding
    return Finding("follows", finding.divergence, cause)


def told(field: str, divergence: Divergence) -> str:
    """Return how a difference is named as the cause of others: ``token_ids at position 3``."""
    at = divergence.position
    return field if at is None else f"{field} at position {at}"


def sequence(left: Sequence[Any] | None, right: Sequence[Any] | None) -> Divergence | None:
    """Return the first place where two sequences differ, or None where they are equal."""
    if left is None or right is None:
        if left is right:
            return None
        return Divergence(
            reference="absent" if left is None else "present",
            candidate="absent" if right is None else "present",
        )
    if left == right:
        return None
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return Divergence(position=position, reference=a, candidate=b)
    shorter = min(len(left), len(right))
    return Divergence(
        position=shorter,
        reference=left[shorter] if len(left) > shorter else "end",
        candidate=right[shorter] if len(right) > shorter else "end",
    )


def _whole(left: Any, right: Any) -> Divergence | None:
    if type(left) is type(right) and left == right:
        return None
    return Divergence(reference=left, candidate=right)


def _floats(
    left: Sequence[float | str] | None, right: Sequence[float | str] | None
) -> Divergence | None:
    for position, (a, b) in enumerate(zip(left or (), right or (), strict=False)):
        if not same_float(a, b):
            return Divergence(position=position, reference=a, candidate=b)
    blank = [None if numbers is None else [None] * len(numbers) for numbers in (left, right)]
    return sequence(*blank)


def _with_depth(
    divergence: Divergence, left: cap.Logprobs | None, right: cap.Logprobs | None
) -> Divergence:
    """Add to a divergence of tokens how close the two were, where logprobs were recorded."""
    at = divergence.position
    mine, theirs = divergence.reference, divergence.candidate
    if at is None or not isinstance(mine, int) or not isinstance(theirs, int):
        return divergence  # one completion ended
    reference = _entries(left, at)
    candidate = _entries(right, at)
    gaps = (_gap(reference, mine, theirs), _gap(candidate, theirs, mine))
    known = [gap for gap in gaps if gap is not None]
    return divergence.model_copy(
        update={
            "reference_rank": candidate[mine][1] or None if mine in candidate else None,
            "candidate_rank": reference[theirs][1] or None if theirs in reference else None,
            "reference_gap": cap.encode_float(gaps[0]),
            "candidate_gap": cap.encode_float(gaps[1]),
            "tie": all(gap == 0 for gap in known) if known else None,
        }
    )


def _entries(logprobs: cap.Logprobs | None, at: int) -> dict[int, tuple[float | str, int]]:
    if logprobs is None or at >= len(logprobs):
        return {}
    return {token: (logprob, rank) for token, logprob, rank in logprobs[at] or []}


def _gap(entries: dict[int, tuple[float | str, int]], own: int, other: int) -> float | None:
    if own not in entries or other not in entries:
        return None
    a, b = float(entries[own][0]), float(entries[other][0])
    return 0.0 if a == b else a - b  # of two infinities, too


def _difference(a: float | str | None, b: float | str | None) -> float | None:
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b)
    return None


def _logprobs(
    left: cap.Logprobs | None,
    right: cap.Logprobs | None,
    tolerance: Tolerance | None,
    diverged: int | None,
) -> Finding:
    """Compare the candidates of every position.

    Args:
        left: the reference's.
        right: the candidate's.
        tolerance: of a logprob; None: exact to the bit, with the same tokens and ranks in the
            same order.
        diverged: where the tokens diverged. Up to there the positions are compared; there, only
            the logprobs of tokens that both have, which were computed from the same text. What
            differs otherwise is not ``different`` but ``follows``.
    """
    if left is None or right is None:
        divergence = sequence(left, right)
        return EQUAL if divergence is None else Finding("different", divergence)
    first: Divergence | None = None
    largest: float | None = None
    result: Outcome = "equal"
    compared = min(len(left), len(right), *([] if diverged is None else [diverged]))
    for position in range(compared):
        a, b = left[position], right[position]
        if _same_entries(a, b):
            continue
        largest = max((d for d in (largest, _largest(a, b)) if d is not None), default=None)
        within = tolerance is not None and _close_entries(a, b, tolerance)
        if within and result == "equal":
            result, first = "within-tolerance", _first_entry(position, a, b)
        elif not within and result != "different":
            result, first = "different", _first_entry(position, a, b)
    if result == "different" or (diverged is None and len(left) == len(right)):
        return _with_largest(result, first, largest)
    if diverged is None:
        return Finding("different", sequence([None] * len(left), [None] * len(right)))
    return _behind(left, right, tolerance, diverged, _with_largest(result, first, largest))


def _with_largest(result: Outcome, first: Divergence | None, largest: float | None) -> Finding:
    if first is None:
        return EQUAL
    return Finding(result, first.model_copy(update={"largest_difference": largest}))


def _behind(
    left: cap.Logprobs,
    right: cap.Logprobs,
    tolerance: Tolerance | None,
    diverged: int,
    before: Finding,
) -> Finding:
    """Judge the logprobs from the position on at which the tokens diverged."""
    a, b = _entries(left, diverged), _entries(right, diverged)
    for token in a:
        if token not in b:
            continue
        (x, rank_x), (y, rank_y) = a[token], b[token]
        if same_float(x, y) and rank_x == rank_y:
            continue
        if tolerance is not None and tolerance.allows(x, y, 1):
            continue
        return Finding(
            "different",
            Divergence(
                position=diverged,
                reference=(token, x, rank_x),
                candidate=(token, y, rank_y),
                difference=_difference(x, y),
                largest_difference=_difference(x, y),
            ),
        )
    if before.result != "equal":
        return before
    for position in range(diverged, min(len(left), len(right))):
        if not _same_entries(left[position], right[position]):
            first = _first_entry(position, left[position], right[position])
            return Finding("follows", first, f"token_ids at position {diverged}")
    lengths = sequence([None] * len(left), [None] * len(right))
    if lengths is None:
        return EQUAL
    return Finding("follows", lengths, f"token_ids at position {diverged}")


_Entries = list[cap.LogprobEntry] | None


def _same_entries(a: _Entries, b: _Entries) -> bool:
    # Equal in every bit but, perhaps, for the sign of a zero: the usual case, and the quick one.
    if a != b:
        return False
    for place, (_, logprob, _) in enumerate(a or ()):
        if logprob == 0 and not same_float(logprob, (b or [])[place][1]):
            return False
    return True


def _first_entry(position: int, a: _Entries, b: _Entries) -> Divergence:
    """Return the first candidate of a position that differs (all of them, of other numbers)."""
    for x, y in zip(a or [], b or [], strict=False):
        if x[0] != y[0] or x[2] != y[2] or not same_float(x[1], y[1]):
            return Divergence(
                position=position,
                reference=x,
                candidate=y,
                difference=_difference(x[1], y[1]) if x[0] == y[0] else None,
            )
    return Divergence(position=position, reference=a, candidate=b)


def _largest(a: _Entries, b: _Entries) -> float | None:
    """Return the largest difference of the logprobs of a token that both have."""
    other = {token: logprob for token, logprob, _ in b or []}
    found = [_difference(x, other[token]) for token, x, _ in a or [] if token in other]
    return max((d for d in found if d is not None and not math.isnan(d)), default=None)


def _close_entries(a: _Entries, b: _Entries, tolerance: Tolerance) -> bool:
    """Say whether the candidates of a position agree within *tolerance*.

    The first one, the token that was taken, must be the same. The ranks may differ, and so may
    the set: a token that one side lists and the other does not must be so close to the other's
    last one that it can have been cut off.
    """
    if a is None or b is None or not a or not b:
        return a == b
    if a[0][0] != b[0][0] or len(a) != len(b):
        return False
    left = {token: logprob for token, logprob, _ in a}
    right = {token: logprob for token, logprob, _ in b}
    for token in {**left, **right}:
        if token in left and token in right:
            agree = tolerance.allows(left[token], right[token], 1)
        elif token in left:
            agree = _was_cut_off(left[token], b, tolerance)
        else:
            agree = _was_cut_off(right[token], a, tolerance)
        if not agree:
            return False
    return True


def _was_cut_off(
    logprob: float | str, others: list[cap.LogprobEntry], tolerance: Tolerance
) -> bool:
    """Say whether a token of *logprob* can be missing from *others*, the likeliest ones."""
    # The token that was taken is listed whatever its rank: it is not where the list was cut.
    listed = [value for _, value, rank in others if 0 < rank <= len(others)]
    if not listed or not all(isinstance(value, float) for value in [logprob, *listed]):
        return False
    least = min(map(float, listed))
    return float(logprob) <= least or tolerance.allows(least, logprob, 1)


def _error(a: cap.RequestError | None, b: cap.RequestError | None) -> Divergence | None:
    """Compare refusals by type and by message, but for what names one request or one process."""
    left = None if a is None else (a.type, normalised(a.message))
    right = None if b is None else (b.type, normalised(b.message))
    if left == right:
        return None
    return Divergence(
        reference=None if a is None else f"{a.type}: {a.message}",
        candidate=None if b is None else f"{b.type}: {b.message}",
    )


_PERSONAL: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<address>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    # A digest or an id in hexadecimal: long, and with a digit in it.
    (re.compile(r"\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\b"), "<number>"),
)


def normalised(message: str) -> str:
    """Return the class of a message: numbers, ids and addresses replaced, white space folded."""
    for pattern, name in _PERSONAL:
        message = pattern.sub(name, message)
    return " ".join(message.split())
