"""The logits processor of teacher forcing; loaded by vLLM's workers, and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from vllm_ray_compat.parity.past import EXTRA


class ForceTokens(AdapterLogitsProcessor):  # type: ignore[misc]
    """Allows one token at each position of the requests that ask for it.

    Logprobs are those of the raw logits, which vLLM takes before its processors.
    """

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
