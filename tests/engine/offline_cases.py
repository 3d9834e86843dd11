"""What the tests of Ray Serve and Ray Data ask, and vLLM's own answer to it without either.

``python offline_cases.py MODEL`` runs ``vllm.LLM`` with one worker, in one process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

#: Of every engine that is compared.
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "async_scheduling": False,
}
SAMPLING = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}


def prompts() -> list[str]:
    return ["A placement group", "Two replicas on one node", "What a rank is told", "Bundles"]


def main() -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(model=sys.argv[1], distributed_executor_backend="uni", **ENGINE)
    outputs = llm.generate(prompts(), SamplingParams(**SAMPLING), use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    print("ANSWER " + json.dumps({"case": "offline", "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
