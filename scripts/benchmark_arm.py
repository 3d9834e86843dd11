"""One engine of benchmark_executors.py: measures when told to, and sleeps otherwise.

Run as ``python benchmark_arm.py ARM_SPEC_JSON`` (an ``ArmSpec`` of the parity run). Reads one JSON
command a line from its standard input and answers each with one JSON line on what was its standard
output; what vLLM prints goes to the log. Ends, engine and all, when its input does: then its driver
is gone, or done.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

from vllm_ray_compat.parity.arm import ArmSpec, describe_engine, engine_arguments
from vllm_ray_compat.parity.workloads import load_suite

PROMPTS = [f"Request {number}: the executor sends" for number in range(8)]
TOKENS = 64
#: A method of every worker that does nothing.
NO_OP = "check_health"
#: Calls that are not counted: readers of a message queue that had gone to sleep are woken by them.
WARM_UP = 50


class Arm:
    """A live engine in this process (``inproc``), and what can be measured of it."""

    def __init__(self, spec: ArmSpec) -> None:
        import vllm

        began = time.monotonic()
        self._llm = vllm.LLM(**engine_arguments(spec, load_suite("smoke")))
        self._engine = self._llm.llm_engine
        self._executor = self._engine.engine_core.engine_core.model_executor
        self._sampling = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        self._requests = 0
        self._start_s = time.monotonic() - began

    def ready(self) -> dict[str, Any]:
        """Say what runs, read from the live engine, and in which processes."""
        self.decode(repeats=2)  # what is made at the first step is no part of any round
        self.control_plane(calls=WARM_UP)
        found = describe_engine(self._llm, "inproc", self._start_s)
        return {
            "executor": found.executor,
            "vllm": found.vllm,
            "ray": found.ray,
            "torch": found.torch,
            "start_s": round(self._start_s, 1),
            "pids": [os.getpid(), *(worker.pid for worker in found.workers)],
        }

    def control_plane(self, calls: int) -> dict[str, float]:
        """Call a method that does nothing on every worker, *calls* times, one after the other."""
        call = self._executor.collective_rpc
        for _ in range(WARM_UP):
            call(NO_OP)
        taken = []
        began = time.perf_counter()
        for _ in range(calls):
            before = time.perf_counter()
            call(NO_OP)
            taken.append(time.perf_counter() - before)
        whole = time.perf_counter() - began
        return {
            "rpc_p50_us": statistics.median(taken) * 1e6,
            "rpc_p99_us": statistics.quantiles(taken, n=100)[98] * 1e6,
            "rpc_per_s": calls / whole,
        }

    def decode(self, repeats: int) -> dict[str, float]:
        """Decode a batch greedily, *repeats* times; times of single steps and tokens a second."""
        steps: list[float] = []
        tokens, whole = 0, 0.0
        for _ in range(repeats):
            for prompt in PROMPTS:
                self._requests += 1
                self._engine.add_request(str(self._requests), prompt, self._sampling)
            while self._engine.has_unfinished_requests():
                before = time.perf_counter()
                outputs = self._engine.step()
                took = time.perf_counter() - before
                steps.append(took)
                whole += took
                tokens += sum(
                    len(one.token_ids)
                    for output in outputs
                    if output.finished
                    for one in output.outputs
                )
        if tokens != repeats * len(PROMPTS) * TOKENS:
            raise RuntimeError(f"{tokens} tokens came from {repeats} batches")
        return {
            "decode_tokens_per_s": tokens / whole,
            "step_p50_us": statistics.median(steps) * 1e6,
        }

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    arm = Arm(ArmSpec.model_validate_json(sys.argv[1]))
    print(json.dumps(arm.ready()), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        measured = getattr(arm, order.pop("measure"))(**order)
        print(json.dumps(measured), file=answers, flush=True)
    arm.close()


if __name__ == "__main__":
    main()
