"""vLLM's CPU platform, with what its Ray executors ask of a platform.

Imported by vLLM only when :func:`vllm_ray_compat.platforms.cpu_platform` names it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.platforms.cpu import CpuPlatform

_STOCK_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
_WORKER = "vllm_ray_compat.platforms.cpu_worker.RayCpuWorker"
_COMMUNICATOR = "vllm_ray_compat.platforms.cpu_communicator.RayCpuCommunicator"


class RayCpuPlatform(CpuPlatform):  # type: ignore[misc]
    """A CPU that Ray counts as GPUs: start Ray with ``--num-gpus N`` for N workers.

    The resource is ``GPU`` and not one of our own: it is the path production takes, and both
    executors look the worker's ids up in Ray's table of accelerators, where a custom resource
    does not appear. Ray is not told to leave CUDA_VISIBLE_DEVICES alone, because Compiled Graph
    reads it.
    """

    ray_device_key = "GPU"
    ray_noset_device_env_vars: ClassVar[list[str]] = []
    #: Executors of vLLM ≤ 0.23 write the ids of a node's devices here. The CPU platform's own
    #: variable names memory nodes, and a fake GPU is none.
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Apply the CPU platform's own checks, keep a Ray executor, and use our worker.

        The CPU platform of vLLM ≤ 0.19.1 turns ``"ray"``, and an executor class, into ``mp``.
        """
        parallel_config = vllm_config.parallel_config
        asked = parallel_config.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        if asked == "ray" or getattr(asked, "uses_ray", False):
            parallel_config.distributed_executor_backend = asked
        if parallel_config.worker_cls == _STOCK_WORKER:
            parallel_config.worker_cls = _WORKER

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the communicator that also works between nodes."""
        return _COMMUNICATOR

    @classmethod
    def device_control_id_to_physical_device_id(cls, device_id: str) -> int:  # noqa: ARG003
        """Return 0, the memory node of every worker, whatever fake GPU Ray handed out.

        vLLM 0.33's CPU worker takes these ids for NUMA nodes, and a node that does not exist
        leaves it none.
        """
        return 0
