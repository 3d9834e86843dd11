"""Teacher forcing: have the candidate go the reference's way, to see what lies past a divergence.

After the first different token two completions answer different prompts, and nothing more can be
compared. So the workload is run once more on the candidate, its tokens forced to the reference's.
Logprobs are those of the raw logits, before the force, and are compared position by position.

:class:`ForceTokens` is loaded by vLLM's workers; the rest is for the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

EXTRA = "raycompat_forced"
#: What the engine argument ``logits_processors`` takes.
PROCESSOR = f"{__name__}:ForceTokens"

if TYPE_CHECKING:
    _Adapter = Any
else:
    try:
        from vllm.v1.sample.logits_processor import AdapterLogitsProcessor as _Adapter
    except ImportError:  # where vLLM is not: the run itself needs only what is below
        _Adapter = object


class ForceTokens(_Adapter):  # type: ignore[misc]
    """Allows one token at each position of the requests that ask for it."""

    def is_argmax_invariant(self) -> bool:
        """Say that greedy sampling, too, is changed."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """Return the processor of a request; None when its tokens are its own."""
        forced = (params.extra_args or {}).get(EXTRA)
        return partial(force, forced) if forced else None


def force(forced: Sequence[int], output_ids: Sequence[int], logits: Any) -> Any:
    """Leave one token possible.

    Args:
        forced: all tokens of the request.
        output_ids: those that there are already.
        logits: of the vocabulary, for the next position; past the end of *forced* they stay.
    """
    position = len(output_ids)
    if position >= len(forced):
        return logits
    token = forced[position]
    kept = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = kept
    return logits
