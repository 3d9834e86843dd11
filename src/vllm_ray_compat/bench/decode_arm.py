"""An arm that has a whole engine: decode, TTFT, ITL, throughput, and its start by phases."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm_ray_compat.bench import load
from vllm_ray_compat.bench.protocol import ArmSpec, Ready, serve

#: In the place of `worker_probe.WorkerProbe`, which it adds to; by name, so that it is imported in
#: the workers alone.
_EXTENSION = "vllm_ray_compat.bench.worker_times.WorkerTimes"
#: Of each prompt. Few, so that prefill is one step.
PROMPT_TOKENS = 16
_VOCABULARY = 400
_WARM_UP_TOKENS = 16
_MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "batch": load.batch,
    "arrivals": load.arrivals,
}


class DecodeArm:
    """A live engine in this process, or with its engine core in another one."""

    def __init__(self, spec: ArmSpec) -> None:
        began = time.time()
        import vllm

        from vllm_ray_compat.parity.arm import executor_backend
        from vllm_ray_compat.parity.topology import parse_topology

        self._imported_s = time.time() - began
        topology = parse_topology(spec.topology)
        self._began = time.time()
        pins: dict[str, Any] = {
            "async_scheduling": False,  # legacy has none
            "enable_prefix_caching": False,  # every prefill is a whole one
            "enforce_eager": True,
            "max_model_len": 1024,
            "seed": 0,
            "disable_log_stats": True,
        }
        self._llm = vllm.LLM(
            **{
                **pins,
                **spec.engine_args,
                "model": spec.model,
                "tensor_parallel_size": topology.tp,
                "pipeline_parallel_size": topology.pp,
                "distributed_executor_backend": executor_backend(spec.backend),
                "worker_extension_cls": _EXTENSION,
            }
        )
        self._whole_s = time.time() - self._began
        self._engine = self._llm.llm_engine
        self._inproc = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
        self._batches = 0

    def ready(self) -> Ready:
        """Warm up with one batch, and say what runs."""
        from vllm_ray_compat.parity.arm import describe_engine

        self.measure("batch", size=8, tokens=_WARM_UP_TOKENS, repeats=1)
        found = describe_engine(self._llm, "inproc" if self._inproc else "process", self._whole_s)
        versions = {"vllm": found.vllm, "ray": found.ray, "torch": found.torch}
        return Ready(
            executor=found.executor,
            repairs=found.repairs or [],
            versions={k: v for k, v in versions.items() if v} | {"python": found.python},
            pids=[os.getpid(), *(worker.pid for worker in found.workers)],
            start_s=self._start(),
        )

    def _start(self) -> dict[str, float]:
        """Return the phases of the start, of the slowest rank each.

        A worker's process that Ray had started before the engine asked for it counts as created
        when the engine's start began.
        """
        times = self._llm.collective_rpc("raycompat_times")
        created = max(self._began, *(one["created"] for one in times))
        imported = max(created, *(one["imported"] for one in times))
        kv_cache = max(imported, *(one["kv_cache"] for one in times))
        phases = {
            "driver imports": self._imported_s,
            "processes": created - self._began,
            "worker imports": imported - created,
            "init": kv_cache - imported,
            "warm-up": self._began + self._whole_s - kv_cache,
        }
        return {name: round(seconds, 2) for name, seconds in phases.items()}

    def measure(self, measure: str, **how: Any) -> dict[str, float]:
        """Take ``batch`` or ``arrivals``; see :mod:`vllm_ray_compat.bench.load`."""
        self._batches += 1
        return _MEASURES[measure](self, name=str(self._batches), **how)

    def add(self, request: str, tokens: int) -> None:
        """Hand over a request; see :class:`vllm_ray_compat.bench.load.Engine`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        number = sum(map(ord, request))
        prompt = [(7 * number + 3 * place) % _VOCABULARY + 3 for place in range(PROMPT_TOKENS)]
        sampling = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._engine.add_request(request, {"prompt_token_ids": prompt}, sampling)

    def step(self) -> Sequence[Any]:
        """See :class:`vllm_ray_compat.bench.load.Engine`."""
        outputs: Sequence[Any] = self._engine.step()
        return outputs

    def busy(self) -> bool:
        """See :class:`vllm_ray_compat.bench.load.Engine`."""
        return bool(self._engine.has_unfinished_requests())

    def close(self) -> None:
        """Shut the engine down."""
        self._engine.engine_core.shutdown()


if __name__ == "__main__":
    serve(DecodeArm)
