"""The control plane alone: a real executor over workers that do nothing.

Run as ``python -m vllm_ray_compat.bench.control_arm SPEC_JSON``; ``protocol`` says how it is asked.

``round_trip`` with ``path`` ``rpc`` is a ``collective_rpc`` with the payload as its argument:
broadcast to all ranks, and an answer from each. ``step`` is what an engine core does in every step:
``execute_model``, and ``sample_tokens`` where that has answered None. ``mp`` and V2 send both to
their workers; the legacy executor sends one, to its Compiled Graph.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from vllm_ray_compat.bench import payload, round_trips
from vllm_ray_compat.bench.protocol import ArmSpec, Ready, serve
from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.arm import executor_backend
from vllm_ray_compat.parity.topology import parse_topology

_WORKER = "vllm_ray_compat.bench.null_worker.NullWorker"
_PATHS = ("rpc", "step")


class WrongAnswerError(Exception):
    """Workers answered something else than they must: what was timed is no round trip."""


def engine_arguments(spec: ArmSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's ``EngineArgs``; those of *spec* win over our pins.

    Raises:
        UsageError: a topology with pipeline stages: steps would need tensors between them.
    """
    topology = parse_topology(spec.topology)
    if topology.pp > 1:
        raise UsageError(
            f"Topology {spec.topology!r} has pipeline stages, and workers that do nothing have no "
            "tensors to hand on. Measure the control plane with tpN."
        )
    return {
        "async_scheduling": False,
        "enforce_eager": True,
        "seed": 0,
        **spec.engine_args,
        "model": spec.model,
        "tensor_parallel_size": topology.tp,
        "distributed_executor_backend": executor_backend(spec.backend),
        "worker_cls": _WORKER,
    }


class ControlArm(round_trips.RoundTripArm):
    """A live executor in this process, and what can be measured of it."""

    def __init__(self, spec: ArmSpec) -> None:
        arguments = engine_arguments(spec)
        from vllm import EngineArgs
        from vllm.v1.executor import Executor

        from vllm_ray_compat.bench import null_worker

        config = EngineArgs(**arguments).create_engine_config()
        began = time.monotonic()
        self._executor: Any = Executor.get_class(config)(config)
        self._start_s = time.monotonic() - began
        self._echoes = [null_worker.ECHO] * config.parallel_config.world_size
        self._requests = len(null_worker.REQUESTS)

    def ready(self) -> Ready:
        """Warm both paths up, and say what runs, read from the live executor."""
        for path in _PATHS:  # Ray compiles its graph at the first step
            self.round_trip(path, "small", calls=2)
        # As an engine core does when it has started: what is there is no garbage.
        gc.collect()
        gc.freeze()
        kind = type(self._executor)
        return Ready(
            executor=f"{kind.__module__}:{kind.__qualname__}",
            repairs=list(getattr(kind, "raycompat_repairs", ())),
            versions=_versions(with_ray=kind.uses_ray),
            pids=[os.getpid(), *self._executor.collective_rpc("process")],
            start_s={"executor": self._start_s},
        )

    def round_trip(self, path: str, payload: str, calls: int) -> dict[str, float]:
        """Time *calls* round trips; see :func:`~.latencies.figures`.

        Raises:
            UsageError: no such path or payload.
            WrongAnswerError: not every worker has answered, or not what it must.
        """
        return round_trips.measure(self._call(path, payload), calls)

    def close(self) -> None:
        """Shut the executor down, and leave Ray."""
        executor, self._executor = self._executor, None
        executor.shutdown()
        del executor
        gc.unfreeze()
        gc.collect()  # queues free their shared memory when they go
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.shutdown()

    def _call(self, path: str, name: str) -> Callable[[], None]:
        if path not in _PATHS:
            raise unknown("path", path, _PATHS)
        call = self._rpc if path == "rpc" else self._step
        return partial(call, payload.build(name))

    def _rpc(self, message: Any) -> None:
        answers = self._executor.collective_rpc("echo", args=(message,))
        if answers != self._echoes:
            raise WrongAnswerError(f"echo of {len(self._echoes)} ranks answered {answers!r}")

    def _step(self, message: Any) -> None:
        output = self._executor.execute_model(message, non_block=True).result()
        if output is None:
            output = self._executor.sample_tokens(None)
        if len(output.req_ids) != self._requests:
            raise WrongAnswerError(f"a step answered {output!r}")


def _versions(*, with_ray: bool) -> dict[str, str]:
    import torch
    import vllm

    found = {
        "python": platform.python_version(),
        "vllm": str(vllm.__version__),
        "torch": str(torch.__version__),
        "pyzmq": importlib.metadata.version("pyzmq"),
    }
    return {**found, "ray": importlib.metadata.version("ray")} if with_ray else found


if __name__ == "__main__":
    serve(ControlArm)
