"""Workers that hold no model, for the repair tests; on the workers' PYTHONPATH."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.distributed import parallel_state
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.worker.worker_base import WorkerBase


class FakeRunner:
    """Hands tensors to the next stage; the last one returns a step with logprobs."""

    supports_mm_inputs = False

    def __init__(self, is_last: bool) -> None:
        self._is_last = is_last

    def execute_model(self, _scheduled: Any, _received: Any) -> Any:
        return None if self._is_last else IntermediateTensors({"hidden": torch.zeros(2)})

    def sample_tokens(self, _grammar: Any) -> Any:
        fields = [np.ones((64, 64)), np.ones((64, 64)), np.ones(64)]
        rest = [None] * (len(LogprobsLists._fields) - len(fields))
        output = ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0})
        output.logprobs = LogprobsLists(*fields, *rest)
        return output


class FakeWorker(WorkerBase):  # type: ignore[misc]
    """Looks like a CUDA worker of vLLM ≥ 0.24: its device is set, the variable is not."""

    def init_device(self) -> None:
        self.device = torch.device("cuda", 0)
        if hasattr(self.parallel_config, "assigned_physical_gpu_ids"):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        stages = self.parallel_config.pipeline_parallel_size
        is_last = self.rank == stages - 1
        parallel_state._PP = SimpleNamespace(is_first_rank=self.rank == 0, is_last_rank=is_last)
        self.model_runner = FakeRunner(is_last)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        pass

    def take_draft_token_ids(self) -> Any:
        return self.rank


class BrokenWorker(FakeWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("cannot be loaded")
