"""RayExecutorV2 for the vLLM releases that do not ship it (0.15 to 0.19).

The design of vLLM RFC 35848: the control plane is the message queue of ``MultiprocExecutor``, the
data plane is ``torch.distributed`` in the workers; Ray places the workers, starts them and tells
when one dies. No Ray call is made on the path of a step.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import cloudpickle
import ray
from vllm import envs
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.platforms import current_platform
from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

from vllm_ray_compat.executors import ray_cluster, reachability, startup
from vllm_ray_compat.executors.actors import actor_options, device_key
from vllm_ray_compat.executors.calls import Answers, Call, call_and_wait
from vllm_ray_compat.executors.failure import Failure
from vllm_ray_compat.executors.monitor import WorkerMonitor
from vllm_ray_compat.executors.placement import RankPlacement, local_ranks_of
from vllm_ray_compat.executors.queue_end import end_when_collected
from vllm_ray_compat.executors.rank_order import INDICES_NAME
from vllm_ray_compat.executors.ray_worker import RayWorkerProc, WorkerDescription, stop_worker
from vllm_ray_compat.executors.resources import Resources
from vllm_ray_compat.executors.response_queue import ResponseQueue
from vllm_ray_compat.executors.worker_env import driver_environment
from vllm_ray_compat.schedule import Backend

#: Seconds workers get to end by themselves before Ray ends them.
_STOP_GRACE_S = 0.8


class _Resources(Resources):
    """And the message queues, by which the workers are asked to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.run_refs: dict[int, Any] = {}
        self.broadcast: Any = None
        self.responses: list[Any] = []

    def stop_work(self, *, graceful: bool) -> None:
        """Have the workers leave their loops, so that connectors and profilers are flushed."""
        if not graceful or not self.run_refs or self.broadcast is None:
            return
        with contextlib.suppress(Exception):  # they are killed next, whatever happens here
            order: tuple[Any, ...] = (cloudpickle.dumps(stop_worker), (), {}, -1)
            end = time.monotonic() + _STOP_GRACE_S
            self.broadcast.enqueue(order, timeout=_STOP_GRACE_S)
            refs = list(self.run_refs.values())
            ray.wait(refs, num_returns=len(refs), timeout=max(0.0, end - time.monotonic()))

    def close(self) -> None:
        for queue in [self.broadcast, *self.responses]:
            if queue is not None and hasattr(queue, "shutdown"):
                queue.shutdown()
        self.broadcast, self.responses = None, []


class RayExecutorV2(Failure, MultiprocExecutor):  # type: ignore[misc]
    """``MultiprocExecutor`` whose workers are Ray actors."""

    uses_ray: bool = True
    supports_pp: bool = True

    def _init_executor(self) -> None:
        self.shutting_down = False
        # collective_rpc of vLLM ≤ 0.17 hands this to the queues as their way out.
        self.shutdown_event = threading.Event()
        self._resources = resources = _Resources()
        self._finalizer = weakref.finalize(self, resources.release, graceful=False)
        try:
            self._start(resources, startup.Deadline(startup.start_timeout_s()))
        except BaseException:
            self._end(graceful=False)
            raise

    def _start(self, resources: _Resources, deadline: startup.Deadline) -> None:
        parallel_config = self.parallel_config
        key = device_key()
        self._get_parallel_sizes()
        ray_cluster.connect(parallel_config)
        resources.group = ray_cluster.acquire_group(parallel_config, key)
        driver_node = ray.get_runtime_context().get_node_id()
        placed = ray_cluster.place_ranks(
            resources.group.handle,
            parallel_config,
            key,
            Backend.V2,
            os.environ.get(INDICES_NAME, ""),
        )

        local = local_ranks_of(placed, driver_node)
        self.rpc_broadcast_mq = resources.broadcast = MessageQueue(
            self.world_size,
            len(local),
            local_reader_ranks=local,
            max_chunk_bytes=envs.VLLM_MQ_MAX_CHUNK_BYTES_MB * 1024 * 1024,
            connect_ip=ray.util.get_node_ip_address(),
        )
        resources.segments.spare(self.rpc_broadcast_mq)
        end_when_collected(self.rpc_broadcast_mq)
        resources.actors = [self._actor(p, resources.group) for p in placed]
        actors = resources.actors
        found = startup.collect(
            {rank: actor.describe.remote() for rank, actor in enumerate(actors)},
            "The start of the worker",
            deadline,
        )
        self._check_nodes(placed, found)
        reachability.check(
            [p.node_id for p in placed],
            actors,
            tensor_parallel_size=parallel_config.tensor_parallel_size,
            store_by_vllms_address=False,
            deadline=deadline,
        )
        resources.local_pids = [found[rank].pid for rank in local]
        store = startup.collect(
            {0: actors[0].open_store.remote(self.world_size)}, "The process group's store", deadline
        )
        handles = startup.collect(
            {
                p.rank: actors[p.rank].start.remote(
                    vllm_config=self.vllm_config,
                    rank=p.rank,
                    local_rank=p.local_rank,
                    distributed_init_method=store[0],
                    input_handle=self.rpc_broadcast_mq.export_handle(),
                    is_driver_worker=self._is_driver_worker(p.rank),
                    on_driver_node=p.node_id == driver_node,
                    driver_environment=driver_environment(),
                    own_environment=_devices_of_node(p, placed, found),
                )
                for p in placed
            },
            "Loading the model",
            deadline,
        )
        queues = [MessageQueue.create_from_handle(handles[p.rank], 0) for p in placed]
        end_when_collected(*queues)
        resources.responses = [
            ResponseQueue(
                queue, self, is_remote=p.node_id != driver_node, options=self._wake_options()
            )
            for p, queue in zip(placed, queues, strict=True)
        ]
        self._answers = [Answers(queue) for queue in resources.responses]
        self._calls: deque[Call] = deque()
        self.response_mqs = resources.responses
        # Before the barrier: workers subscribe to the queues in there.
        resources.run_refs = {rank: actor.run.remote() for rank, actor in enumerate(actors)}
        startup.wait_until_ready(self.rpc_broadcast_mq, resources.run_refs, deadline)
        for queue in queues:
            startup.wait_until_ready(queue, resources.run_refs, deadline)

        self._post_init_executor()
        # And again when they end; but a worker that dies can no longer be asked then.
        resources.segments.note(resources.local_pids)
        resources.monitor = WorkerMonitor(self, resources.run_refs)
        self.output_rank = self._get_output_rank()

    def _actor(self, place: RankPlacement, group: ray_cluster.Group) -> Any:
        options = actor_options(
            place, group, self.parallel_config, runtime_env=self.parallel_config.ray_runtime_env
        )
        return (
            ray.remote(RayWorkerProc).options(name=self._actor_name(place.rank), **options).remote()
        )

    def _actor_name(self, rank: int) -> str:
        """Return the name the Ray dashboard shows; unique for each data parallel engine, too."""
        config = self.parallel_config
        tp, pp = config.tensor_parallel_size, config.pipeline_parallel_size
        name = f"vllm_Worker_{self.vllm_config.instance_id}"
        if config.data_parallel_size > 1:
            name += f"_DP{config.data_parallel_rank}"
        if tp > 1:
            name += f"_TP{rank % tp}"
        if pp > 1:
            name += f"_PP{rank // tp % pp}"
        if rank >= tp * pp:
            name += f"_PCP{rank // (tp * pp)}"
        return name

    def _check_nodes(
        self, placed: list[RankPlacement], found: dict[int, WorkerDescription]
    ) -> None:
        for p in placed:
            node, devices, _ = found[p.rank]
            if node != p.node_id or not devices:
                raise startup.WorkerStartError(
                    f"Ray placed rank {p.rank} on node {node} with devices {devices}; the "
                    f"placement group says node {p.node_id}, bundle {p.bundle_index}."
                )

    def _wake_options(self) -> dict[str, Any]:
        """Return what a reader is woken by when the executor ends, where shutdown does not."""
        takes_event = "cancel" in inspect.signature(MessageQueue.dequeue).parameters
        return {"cancel": self.shutdown_event} if takes_event else {}

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        unique_reply_rank: int | None = None,
        kv_output_aggregator: Any = None,
    ) -> Any:
        """Call *method* on every worker; steps come this way, too.

        Args:
            method: the name of a method of the worker, or a function that takes the worker.
            timeout: seconds; None waits as long as it takes.
            args: positional arguments.
            kwargs: keyword arguments.
            non_block: return a future.
            unique_reply_rank: only this rank answers, and its result is returned.
            kv_output_aggregator: makes one output of those of all ranks.

        Raises:
            TimeoutError: not every worker answered in time.
            RuntimeError: a worker raised, or has died, or the executor was shut down.
        """
        # Taken before the checks: the monitor takes them away in its own thread.
        broadcast, answers = self.rpc_broadcast_mq, self._answers
        self.check_alive()
        if self.shutting_down:
            raise RuntimeError("The executor has been shut down.")
        reply_rank = unique_reply_rank if kv_output_aggregator is None else None
        finish: Callable[[list[Any]], Any] = list
        if kv_output_aggregator is not None:
            finish = partial(kv_output_aggregator.aggregate, output_rank=unique_reply_rank or 0)
        elif reply_rank is not None:
            finish = itemgetter(0)
        sent = method if isinstance(method, str) else cloudpickle.dumps(method)
        broadcast.enqueue((sent, args, kwargs or {}, reply_rank))
        asked = answers if reply_rank is None else [answers[reply_rank]]
        name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
        wait = Call if non_block else call_and_wait
        return wait(name, asked, WorkerProc.ResponseStatus.SUCCESS, finish, timeout, self._calls)

    def on_worker_death(self, ranks: list[int], cause: str) -> None:
        """Fail the engine; called by the monitor."""
        self.note_failure(ranks, cause)
        self._release(graceful=False)
        try:
            self.tell_of_failure()
        finally:
            self._resources.free_segments()  # takes longer than the engine should wait for the news

    def shutdown(self) -> None:
        """Stop the workers and release everything. Idempotent."""
        self._end(graceful=not self.is_failed)

    def _end(self, *, graceful: bool) -> None:
        self._release(graceful=graceful)
        if hasattr(self, "_resources"):
            self._resources.free_segments()

    def _release(self, *, graceful: bool) -> None:
        resources = getattr(self, "_resources", None)
        if resources is None:
            return
        self.shutting_down = True
        self.shutdown_event.set()
        resources.release(graceful=graceful)
        self.rpc_broadcast_mq = None
        self.response_mqs = self._answers = []


def _devices_of_node(
    place: RankPlacement, placed: list[RankPlacement], found: dict[int, WorkerDescription]
) -> dict[str, str]:
    """Return the variable that shows a worker every device this engine has on its node.

    vLLM ≤ 0.23 takes the device by local rank from there.
    """
    devices = [d for p in placed if p.node_id == place.node_id for d in found[p.rank].devices]
    by_number = sorted(devices, key=lambda d: (not d.isdigit(), int(d) if d.isdigit() else 0, d))
    return {current_platform.device_control_env_var: ",".join(by_number)}
