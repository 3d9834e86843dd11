"""A worker that does nothing, so that what is measured of an executor is the executor."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch
from vllm.distributed import parallel_state
from vllm.platforms import current_platform
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import WorkerBase

from vllm_ray_compat.bench import fields

#: What :meth:`NullWorker.echo` answers.
ECHO = 1
#: The requests that every step's answer is about.
REQUESTS = tuple(f"chatcmpl-{number:032x}-{number:08x}" for number in range(8))


class NullRunner:
    """What a worker calls its model runner; the legacy executor's graph asks it directly.

    As vLLM's own do, it answers a step in two: ``execute_model`` with None, then ``sample_tokens``
    with the tokens. An executor that makes two round trips of that makes them here, too.
    """

    supports_mm_inputs = False

    def __init__(self) -> None:
        self._output = fields.make(
            ModelRunnerOutput,
            req_ids=list(REQUESTS),
            req_id_to_index={request: index for index, request in enumerate(REQUESTS)},
            sampled_token_ids=[[index] for index, _ in enumerate(REQUESTS)],
        )

    def execute_model(
        self,
        scheduler_output: Any,
        intermediate_tensors: Any = None,
    ) -> None:
        """Take a step."""

    def sample_tokens(self, grammar_output: Any) -> Any:  # noqa: ARG002
        """Return the tokens of the step, the same every time."""
        return self._output


class _OnlyStage:
    """Stands for the group of pipeline stages, which the legacy executor's actors ask.

    There is one stage, and a real group would open connections that nothing is sent through.
    """

    is_first_rank = is_last_rank = True
    rank_in_group = 0
    world_size = 1

    def destroy(self) -> None:
        """Do as vLLM wants of a group at the end of a process."""


class NullWorker(WorkerBase):  # type: ignore[misc]
    """vLLM's worker without a model, a device, a KV cache and distributed groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kind = current_platform.device_type
        # Executors make it the current device of a thread, and want an index of an accelerator.
        self.device = torch.device(kind) if kind == "cpu" else torch.device(kind, self.local_rank)
        self.model_runner = NullRunner()

    def init_device(self) -> None:
        """Initialise no device; let this worker be the only stage."""
        if parallel_state._PP is None:
            parallel_state._PP = _OnlyStage()

    def load_model(self, **_: Any) -> None:
        """Load nothing, and call what is there no garbage, as vLLM's GPU worker does.

        How long a collection takes depends on what else was imported, which is more below Ray.
        """
        gc.collect()
        gc.freeze()

    def execute_model(self, scheduler_output: Any, *_: Any) -> Any:
        """Take a step."""
        return self.model_runner.execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Return the tokens of the step."""
        return self.model_runner.sample_tokens(grammar_output)

    def echo(self, payload: Any) -> int:  # noqa: ARG002
        """Return a small constant."""
        return ECHO

    def process(self) -> int:
        """Return the id of the process this worker lives in."""
        return os.getpid()
