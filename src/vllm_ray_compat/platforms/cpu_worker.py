"""vLLM's CPU worker, able to be a stage of a pipeline and a worker of the legacy executor."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class RayCpuWorker(CPUWorker):  # type: ignore[misc]
    """The CPU worker with two gaps closed.

    ``device`` is set from the start: before vLLM 0.23 it stays None and the legacy executor
    asserts on it. A later pipeline stage always makes a profiling pass: it allocates the buffers
    the stage receives into, and the CPU worker leaves it out in eager mode (the first request
    then fails on ``assert self.intermediate_tensors is not None``, with every executor).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.device = torch.device("cpu")

    def determine_available_memory(self) -> int:
        """Return the bytes for the KV cache, after a profiling pass of a later stage left cold."""
        available: int = super().determine_available_memory()
        runner = self.model_runner
        first_stage = self.parallel_config.pipeline_parallel_size == 1 or (
            get_pp_group().is_first_rank
        )
        if not first_stage and getattr(runner, "intermediate_tensors", None) is None:
            runner.profile_run()
        return available
