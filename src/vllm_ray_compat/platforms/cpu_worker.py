"""vLLM's CPU worker, able to be a stage of a pipeline and a worker of the legacy executor."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

_LIBRARIES_WANTED = ("libtcmalloc", "libiomp")


class RayCpuWorker(CPUWorker):  # type: ignore[misc]
    """The CPU worker with three gaps closed.

    ``device`` is set from the start: before vLLM 0.23 it stays None and the legacy executor
    asserts on it. A later pipeline stage always makes a profiling pass: it allocates the buffers
    the stage receives into, and the CPU worker leaves it out in eager mode (the first request
    then fails on ``assert self.intermediate_tensors is not None``, with every executor). vLLM
    0.18 refuses to start unless LD_PRELOAD names two libraries; see :meth:`init_device`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.device = torch.device("cpu")

    def init_device(self) -> None:
        """Initialise the device, with the allocator and OpenMP library that are there.

        vLLM 0.18's worker begins by raising unless LD_PRELOAD *names* tcmalloc and Intel's
        OpenMP; other releases warn at most. Both make it faster, neither changes a result, and
        the loader read the variable long ago: the names are shown to the check, no longer.
        """
        try:
            super().init_device()
            return
        except RuntimeError as error:
            if "LD_PRELOAD" not in str(error):
                raise
        before = os.environ.get("LD_PRELOAD")
        os.environ["LD_PRELOAD"] = ":".join([*([before] if before else []), *_LIBRARIES_WANTED])
        try:
            super().init_device()
        finally:
            # The loader of a process started from here would complain that they do not exist.
            if before is None:
                del os.environ["LD_PRELOAD"]
            else:
                os.environ["LD_PRELOAD"] = before

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
