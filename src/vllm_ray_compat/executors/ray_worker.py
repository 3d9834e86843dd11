"""The Ray actor that hosts one worker of :class:`~.ray_v2.RayExecutorV2`."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from torch.distributed import TCPStore
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import WorkerProc

from vllm_ray_compat.executors.tcp_store import open_store
from vllm_ray_compat.executors.worker_env import fill_in
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)


class StopWorkerError(BaseException):
    """Raised inside a worker's loop to end it; no ``Exception``, so the loop lets it through."""


def stop_worker(_worker: Any) -> None:
    """End the loop of the worker that executes this (sent through the broadcast queue)."""
    raise StopWorkerError


class WorkerDescription(NamedTuple):
    """A node's id, the ids of the devices Ray assigned to an actor there, and its process."""

    node_id: str
    devices: list[str]
    pid: int


class RayWorkerProc(WorkerProc):  # type: ignore[misc]
    """vLLM's worker process, inside a Ray actor.

    Made in two steps, because the device is known only once Ray has placed the actor: the
    constructor does nothing, :meth:`start` does what ``WorkerProc``'s constructor does.
    """

    def __init__(self) -> None:
        self._on_driver_node = False
        self._store: TCPStore | None = None

    def describe(self) -> WorkerDescription:
        """Return where Ray has placed this actor, and with which devices."""
        context = ray.get_runtime_context()
        devices = context.get_accelerator_ids()[current_platform.ray_device_key]
        return WorkerDescription(context.get_node_id(), [str(d) for d in devices], os.getpid())

    def open_store(self, world_size: int) -> str:
        """Bind the store of ``torch.distributed`` on this node; for rank 0.

        Returns:
            The init method, ``tcp://host:port``.
        """
        self._store, init_method = open_store(world_size)
        return init_method

    def start(
        self,
        *,
        vllm_config: Any,
        rank: int,
        local_rank: int,
        distributed_init_method: str,
        input_handle: Any,
        is_driver_worker: bool,
        on_driver_node: bool,
        driver_environment: Mapping[str, str],
        own_environment: Mapping[str, str],
    ) -> Any:
        """Initialise device, model and queues; returns the handle of the response queue.

        *driver_environment* fills in what the node has not set, *own_environment* overwrites.
        """
        fill_in(driver_environment)
        os.environ.update(own_environment)
        self._on_driver_node = on_driver_node
        super().__init__(
            vllm_config=vllm_config,
            local_rank=local_rank,
            rank=rank,
            distributed_init_method=distributed_init_method,
            input_shm_handle=input_handle,
            shared_worker_lock=None,
            is_driver_worker=is_driver_worker,
        )
        return self.worker_response_mq.export_handle()

    def _init_message_queues(self, input_shm_handle: Any, vllm_config: Any) -> None:  # noqa: ARG002
        """Shared memory on the driver's node, TCP elsewhere.

        The address is the one Ray uses between its nodes; vLLM's ``get_ip`` may return another
        interface's.
        """
        self.rpc_broadcast_mq = MessageQueue.create_from_handle(input_shm_handle, self.rank)
        self.worker_response_mq = MessageQueue(
            n_reader=1,
            n_local_reader=1 if self._on_driver_node else 0,
            connect_ip=ray.util.get_node_ip_address(),
        )
        self.peer_response_handles: list[Any] = []

    def run(self) -> None:
        """Serve until stopped. Ends with an error only when the worker cannot go on."""
        try:
            # The broadcast queue first, as the executor does, or both sides wait for ever.
            self.rpc_broadcast_mq.wait_until_ready()
            self.worker_response_mq.wait_until_ready()
            self.worker_busy_loop()
        except StopWorkerError:
            pass
        except Exception:
            _logger.exception("The worker of rank %d cannot go on", self.rank)
            raise
        finally:
            self._close()

    def _close(self) -> None:
        """Release what the worker holds; ≤ 0.17 has no ``MessageQueue.shutdown`` to call."""
        if hasattr(MessageQueue, "shutdown"):
            self.shutdown()
        else:
            self.worker.shutdown()
