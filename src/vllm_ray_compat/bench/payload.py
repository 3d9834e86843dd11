"""The messages of the control plane: real ``SchedulerOutput`` objects of two sizes.

``small`` is a decode step of 8 running requests. ``large`` is a step of 256 running requests
and of 8 new ones with prompts of 2,048 tokens. Blocks hold 16 tokens.

Pickled as vLLM's message queue does it, they have 1,380 and 88,105 bytes with vLLM 0.32.0; 1,185
and 87,743 with 0.19.1; 1,421 and 88,146 with 0.33.0 (measured).
"""

from __future__ import annotations

import pickle
import random
from typing import Any, NamedTuple

from vllm_ray_compat.bench import fields
from vllm_ray_compat.errors import unknown


class Shape(NamedTuple):
    """How many requests a step has: those it decodes one token of, and those it begins."""

    running: int
    new: int
    prompt_tokens: int = 2048


SHAPES = {"small": Shape(running=8, new=0), "large": Shape(running=256, new=8)}

#: For floors, which send bytes and do without vLLM.
PICKLED_BYTES = {"small": 1_380, "large": 88_105}

_BLOCK_TOKENS = 16
#: What token and block ids are drawn from, because large numbers take more bytes: the vocabulary
#: of Llama 3, and the blocks of 80 GB of a KV cache.
_VOCABULARY = 128_256
_BLOCKS = 40_000


def check_known(payload: str) -> None:
    """Check that there is a payload of this name.

    Raises:
        UsageError: there is none.
    """
    if payload not in SHAPES:
        raise unknown("payload", payload, SHAPES)


def build(payload: str) -> Any:
    """Build vLLM's ``SchedulerOutput``, the same every time.

    Args:
        payload: ``small`` or ``large``.

    Raises:
        UsageError: another name.
    """
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    check_known(payload)
    shape = SHAPES[payload]
    draw = random.Random(payload)

    def request_id() -> str:
        return f"chatcmpl-{draw.getrandbits(128):032x}-{draw.getrandbits(32):08x}"

    def blocks(number: int) -> tuple[list[int]]:
        return ([draw.randrange(_BLOCKS) for _ in range(number)],)

    running = [request_id() for _ in range(shape.running)]
    computed = [draw.randrange(16, 4096) for _ in running]
    cached = fields.make(
        CachedRequestData,
        req_ids=running,
        new_block_ids=[None if tokens % _BLOCK_TOKENS else blocks(1) for tokens in computed],
        num_computed_tokens=computed,
        num_output_tokens=[min(tokens, draw.randrange(1, 512)) for tokens in computed],
    )
    new = [
        fields.make(
            NewRequestData,
            req_id=request_id(),
            prompt_token_ids=[draw.randrange(_VOCABULARY) for _ in range(shape.prompt_tokens)],
            sampling_params=SamplingParams(temperature=0.7, top_p=0.95, max_tokens=512),
            block_ids=blocks(-(-shape.prompt_tokens // _BLOCK_TOKENS)),
        )
        for _ in range(shape.new)
    ]
    scheduled = dict.fromkeys(running, 1) | {one.req_id: shape.prompt_tokens for one in new}
    return fields.make(
        SchedulerOutput,
        scheduled_new_reqs=new,
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        num_common_prefix_blocks=[0],
    )


def pickled_bytes(message: Any) -> int:
    """Return the size of *message* in bytes, pickled as vLLM's message queue does it."""
    return len(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
