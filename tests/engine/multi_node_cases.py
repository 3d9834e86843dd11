"""Start engines on a cluster of several nodes, and tell what came of it; run on one of its nodes.

``python multi_node_cases.py MODEL BACKEND:TOPOLOGY…`` starts an engine for each case, one after the
other in this process, and prints one JSON object a case: what it answered, where its ranks were, or
why it did not start, and what it left. It judges nothing: the tests do. BACKEND is ``v2``,
``legacy``, ``mp`` or ``module:Class``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

import vllm

from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity.topology import parse_topology

#: Seconds after which a case counts as hanging: the process says where every thread is, and ends.
CASE_S = float(os.environ.get("CASE_S", "240"))

PROMPTS = ("The executor sends each step", "A rank holds", "Numbers such as 0, 1, 2", "When the")


def backend_arguments(backend: str) -> dict[str, Any]:
    module, _, name = backend.partition(":")
    if name:
        return {"distributed_executor_backend": getattr(importlib.import_module(module), name)}
    os.environ[FLAG_NAME] = "0" if backend == "legacy" else "1"
    return {"distributed_executor_backend": "mp" if backend == "mp" else "ray"}


def start(model: str, backend: str, topology: str) -> Any:
    sizes = parse_topology(topology)
    return vllm.LLM(
        model=model,
        tensor_parallel_size=sizes.tp,
        pipeline_parallel_size=sizes.pp,
        enforce_eager=True,
        async_scheduling=False,
        dtype="float32",
        max_model_len=256,
        seed=0,
        worker_extension_cls="vllm_ray_compat.parity.worker_probe.WorkerProbe",
        **backend_arguments(backend),
    )


def answers_of(llm: Any) -> list[Any]:
    """Return token ids and the logprob of each, as exact as they are."""
    parameters = vllm.SamplingParams(temperature=0, max_tokens=8, logprobs=1, ignore_eos=True)
    outputs = llm.generate(list(PROMPTS), parameters, use_tqdm=False)
    return [
        [
            [token, step[token].logprob]
            for token, step in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)
        ]
        for o in outputs
    ]


def ranks_of(llm: Any) -> list[list[Any]]:
    """Return rank, local rank and address of every worker."""
    found = llm.collective_rpc("raycompat_describe")
    return sorted([w["rank"], w["local_rank"], w["node_ip"]] for w in found)


def left() -> dict[str, Any]:
    """Say what is left of an engine in Ray, after a moment."""
    import ray
    from looking import devices_held, groups_left

    if not ray.is_initialized():
        return {}
    return {"held": devices_held(), "groups": groups_left()}


def error_text(error: BaseException) -> str:
    texts = []
    seen: BaseException | None = error
    while seen is not None:
        texts.append(f"{type(seen).__name__}: {seen}")
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return " <- ".join(texts)


def run(model: str, case: str) -> dict[str, Any]:
    backend, _, topology = case.rpartition(":")
    found: dict[str, Any] = {}
    began = time.monotonic()
    llm = None
    try:
        llm = start(model, backend, topology)
        found["start_s"] = round(time.monotonic() - began, 1)
        found["executor"] = type(llm.llm_engine.engine_core.engine_core.model_executor).__module__
        found["ranks"] = ranks_of(llm)
        asked = time.monotonic()
        found["answers"] = answers_of(llm)
        found["answer_s"] = round(time.monotonic() - asked, 2)
    except Exception as error:  # why it does not start is the answer
        found["error"] = error_text(error)
        found["failed_s"] = round(time.monotonic() - began, 1)
    if llm is not None:
        with contextlib.suppress(Exception):
            llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return {**found, **left()}


def give_up(case: str, began: float) -> None:
    faulthandler.dump_traceback(all_threads=True)
    tell(case, began, {"error": "hangs"})
    os._exit(0)


def tell(case: str, began: float, found: dict[str, Any]) -> None:
    took = round(time.monotonic() - began, 1)
    print("ANSWER " + json.dumps({"case": case, "total_s": took, **found}), flush=True)


def main() -> None:
    model, *cases = sys.argv[1:]
    for case in cases:
        began = time.monotonic()
        watch = threading.Timer(CASE_S, give_up, (case, began))
        watch.daemon = True
        watch.start()
        found = run(model, case)
        watch.cancel()
        tell(case, began, found)
    # A hanging start has left a thread that nothing wakes; Python's exit would wait for it.
    os._exit(0)


if __name__ == "__main__":
    main()
