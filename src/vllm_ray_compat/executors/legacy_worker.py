"""The Ray actor that hosts one worker of :class:`~.ray_legacy.RayLegacyExecutor`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from vllm.distributed import get_pp_group
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.serial_utils import run_method
from vllm.v1.worker.worker_base import WorkerWrapperBase

from vllm_ray_compat.executors.graph_device import set_graph_device
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)


class WorkerDescription(NamedTuple):
    """A node and its address, the ids of the devices Ray assigned there, and the process."""

    node_id: str
    address: str
    devices: list[str]
    pid: int


class LegacyWorker(WorkerWrapperBase):  # type: ignore[misc]
    """A worker whose steps are nodes of a Ray Compiled Graph, and whose calls are actor calls."""

    def __init__(self, rank: int) -> None:
        super().__init__(rpc_rank=rank)
        self._thread_has_device = False

    def describe(self) -> WorkerDescription:
        """Return where Ray has placed this actor, and with which devices."""
        context = ray.get_runtime_context()
        devices = context.get_accelerator_ids()[current_platform.ray_device_key]
        return WorkerDescription(
            context.get_node_id(),
            ray.util.get_node_ip_address(),
            [str(d) for d in devices],
            os.getpid(),
        )

    def set_environment(self, variables: Mapping[str, str]) -> None:
        """Set *variables*; the driver's value wins, as it always did with this executor."""
        os.environ.update(variables)

    def ping(self) -> None:
        """Answer, if this process lives and its main thread is free."""

    def execute_method(self, method: str | bytes, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the worker by name, or a pickled function with the worker."""
        try:
            return run_method(self, method, args, kwargs)
        except Exception:
            _logger.exception("Rank %d failed in %r", self.rpc_rank, method)
            raise

    def prepare_graph(self) -> None:
        """Do what must come before the first run of the graph."""
        set_graph_device(self)

    def step(self, inputs: tuple[Any, ...]) -> Any:
        """Run one step of this stage; a node of the graph.

        Args:
            inputs: scheduler output, grammar output and, from the stage before, its intermediate
                tensors (None when nothing was scheduled).

        Returns:
            The same three for the next stage, or the ``ModelRunnerOutput`` of the last one.
        """
        scheduler_output, grammar_output, *received = inputs
        self._give_thread_its_device()
        runner = self.worker.model_runner
        output = runner.execute_model(scheduler_output, received[0] if received else None)
        if isinstance(output, IntermediateTensors):
            if runner.supports_mm_inputs and get_pp_group().is_first_rank:
                # Later stages need the tensors only; images would cross the channel for nothing.
                for request in scheduler_output.scheduled_new_reqs:
                    request.mm_features = []
            return scheduler_output, grammar_output, output
        output = _resolved(output)
        if not get_pp_group().is_last_rank:
            return scheduler_output, grammar_output, None
        if output is None:
            output = _resolved(runner.sample_tokens(grammar_output))
        return output

    def _give_thread_its_device(self) -> None:
        """Graphs run in a thread of Ray's, which starts on device 0."""
        if not self._thread_has_device:
            device = getattr(self.worker, "device", None)
            if device is not None:
                current_platform.set_device(device)
            self._thread_has_device = True


def _resolved(output: Any) -> Any:
    """Return the output itself: an asynchronous one holds CUDA events and cannot be pickled."""
    return output.get_output() if isinstance(output, AsyncModelRunnerOutput) else output
