"""The legacy Compiled Graph executor, for the vLLM releases that removed it (0.33 and later).

Selected by flag off and ``RAYCOMPAT_RESTORE_LEGACY=1``. A step is one execution of a graph that
Ray has compiled; everything else is a call of the actors. What vLLM's own lacked is here: workers
are watched, shutdown always ends them, and what it cannot do right is refused before it starts.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import cloudpickle
import ray
from vllm import envs
from vllm.platforms import current_platform
from vllm.ray.ray_env import get_env_vars_to_copy
from vllm.utils.network_utils import get_distributed_init_method, get_open_port
from vllm.v1.executor.abstract import Executor

from vllm_ray_compat.errors import RaycompatError
from vllm_ray_compat.executors import (
    legacy_graph,
    legacy_limits,
    ray_cluster,
    reachability,
    startup,
)
from vllm_ray_compat.executors.actors import actor_options, device_key
from vllm_ray_compat.executors.failure import Failure
from vllm_ray_compat.executors.legacy_resources import GraphResources
from vllm_ray_compat.executors.legacy_worker import LegacyWorker, WorkerDescription
from vllm_ray_compat.executors.monitor import PingMonitor
from vllm_ray_compat.executors.placement import RankPlacement
from vllm_ray_compat.executors.rank_order import INDICES_NAME
from vllm_ray_compat.executors.worker_env import WORKER_SPECIFIC
from vllm_ray_compat.schedule import Backend

#: Set by vLLM's configuration after Ray has started, and read when the model is imported.
_BEFORE_IMPORT = ("VLLM_USE_BREAKABLE_CUDAGRAPH",)


class LegacyRefusedError(RaycompatError):
    """The configuration is one that this executor would serve wrongly."""


class RayLegacyExecutor(Failure, Executor):  # type: ignore[misc]
    """Workers as Ray actors, steps as executions of a Ray Compiled Graph."""

    uses_ray: bool = True
    supports_pp: bool = True

    def _init_executor(self) -> None:
        self._resources = resources = GraphResources()
        self._finalizer = weakref.finalize(self, resources.release)
        self._waiting: Any = None
        config = self.vllm_config
        refuse(config)
        self._transport = legacy_graph.transport(current_platform.is_cuda_alike())
        legacy_graph.check_requirements(
            self._transport, self.parallel_config.pipeline_parallel_size
        )
        self.has_connector = config.kv_transfer_config is not None
        self.uses_sampler = config.model_config.runner_type != "pooling"
        try:
            self._start(resources, startup.Deadline(startup.start_timeout_s()))
        except BaseException:
            resources.release()
            resources.free_segments()
            raise

    def _start(self, resources: GraphResources, deadline: startup.Deadline) -> None:
        config = self.parallel_config
        key = device_key()
        ray_cluster.connect(config)
        resources.group = ray_cluster.acquire_group(config, key, pin_to_driver=True)
        driver_node = ray.get_runtime_context().get_node_id()
        placed = ray_cluster.place_ranks(
            resources.group.handle, config, key, Backend.LEGACY, os.environ.get(INDICES_NAME, "")
        )
        resources.actors = self.workers = [self._actor(p, resources.group) for p in placed]
        found = startup.collect(
            {rank: actor.describe.remote() for rank, actor in enumerate(self.workers)},
            "The start of the worker",
            deadline,
        )
        check_addresses([(worker.node_id, worker.address) for worker in found.values()])
        reachability.check(
            [worker.node_id for worker in found.values()],
            self.workers,
            tensor_parallel_size=config.tensor_parallel_size,
            store_by_vllms_address=False,
            deadline=deadline,
        )
        resources.local_pids = [w.pid for w in found.values() if w.node_id == driver_node]

        def on_all(what: str, call: Callable[[int, Any], Any]) -> None:
            startup.collect(
                {rank: call(rank, actor) for rank, actor in enumerate(self.workers)}, what, deadline
            )

        variables = self._environment()
        on_all("Setting the environment", lambda _, actor: actor.set_environment.remote(variables))
        all_kwargs = self._worker_arguments(found)
        on_all("Initialising the worker", lambda _, actor: actor.init_worker.remote(all_kwargs))
        on_all("Initialising the device", lambda _, a: a.execute_method.remote("init_device"))
        load = ("elastic_ep_execute", "load_model") if _elastic() else ("load_model",)
        on_all("Loading the model", lambda _, actor: actor.execute_method.remote(*load))
        update = cloudpickle.dumps(_update_block_size)
        on_all("Setting the block size", lambda _, a: a.execute_method.remote(update))
        on_all("Preparing the graph", lambda _, actor: actor.prepare_graph.remote())
        tp = config.tensor_parallel_size
        self._stages = [
            self.workers[first : first + tp] for first in range(0, config.world_size, tp)
        ]
        # And again when they end; but a worker that dies can no longer be asked then.
        resources.segments.note(resources.local_pids)
        resources.monitor = PingMonitor(self, dict(enumerate(self.workers)))

    def _actor(self, place: RankPlacement, group: ray_cluster.Group) -> Any:
        options = actor_options(
            place,
            group,
            self.parallel_config,
            variables={n: os.environ[n] for n in _BEFORE_IMPORT if n in os.environ},
            capture_child_tasks=True,
        )
        return ray.remote(LegacyWorker).options(**options).remote(place.rank)

    def _environment(self) -> dict[str, str]:
        """Return what the workers get of the driver's environment: vLLM's own allow-list."""
        names = get_env_vars_to_copy(
            exclude_vars=set(WORKER_SPECIFIC),
            additional_vars=set(current_platform.additional_env_vars),
            destination="workers",
        )
        return {name: os.environ[name] for name in names if name in os.environ}

    def _worker_arguments(self, found: dict[int, WorkerDescription]) -> list[dict[str, Any]]:
        nodes = {worker.node_id for worker in found.values()}
        # One node: loopback always works, whatever its other interfaces are.
        host = "127.0.0.1" if len(nodes) == 1 else ray.util.get_node_ip_address()
        method = get_distributed_init_method(host, get_open_port())
        to_physical = current_platform.device_control_id_to_physical_device_id
        arguments = []
        for rank, worker in found.items():
            on_node = [r for r, other in found.items() if other.node_id == worker.node_id]
            devices = sorted(to_physical(d) for r in on_node for d in found[r].devices)
            arguments.append(
                {
                    "vllm_config": self.vllm_config,
                    "assigned_physical_gpu_ids": devices,
                    "local_rank": on_node.index(rank),
                    "rank": rank,
                    "distributed_init_method": method,
                    "is_driver_worker": rank % self.parallel_config.tensor_parallel_size == 0,
                }
            )
        return arguments

    # -- steps -------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step.

        When a sampler is used, the step only waits here for :meth:`sample_tokens`, which brings
        the grammar: one execution of the graph does both.

        Raises:
            RuntimeError: the step before was not finished, or a worker has died.
        """
        if self._waiting is not None:
            raise RuntimeError("sample_tokens() must be called after execute_model() returned None")
        if not self.uses_sampler or not scheduler_output.total_num_scheduled_tokens:
            return self._run_graph(scheduler_output, None, non_block)
        self._waiting = scheduler_output
        return _done(None) if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Run the step that waits; without one there is nothing to sample."""
        scheduler_output, self._waiting = self._waiting, None
        if scheduler_output is None:
            return _done(None) if non_block else None
        return self._run_graph(scheduler_output, grammar_output, non_block)

    def _run_graph(self, scheduler_output: Any, grammar_output: Any, non_block: bool) -> Any:
        self.check_alive()
        resources = self._resources
        if resources.graph is None:
            resources.graph = legacy_graph.compile_graph(self._stages, self._transport)
        refs = resources.graph.execute((scheduler_output, grammar_output))
        if self.has_connector:
            aggregate = self.kv_output_aggregator.aggregate
            future = legacy_graph.RayFuture(
                refs, lambda outputs: aggregate([legacy_graph.detached(o) for o in outputs])
            )
        elif not non_block:
            return legacy_graph.detached(refs[0].get())  # in every step: without a future's locks
        else:
            future = legacy_graph.RayFuture(refs[0], legacy_graph.detached)
        return future if non_block else future.result()

    # -- calls -------------------------------------------------------------------------------

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        unique_reply_rank: int | None = None,
    ) -> Any:
        """Call *method* on every worker.

        Args:
            method: the name of a method of the worker, or a function that takes the worker.
            timeout: seconds; None waits as long as it takes.
            args: positional arguments.
            kwargs: keyword arguments.
            non_block: return a future of the list.
            unique_reply_rank: return the result of this rank alone.

        Raises:
            TimeoutError: not every worker answered in time.
            Exception: what a worker raised, with its own type.
        """
        self.check_alive()
        sent = method if isinstance(method, str) else cloudpickle.dumps(method)
        refs = [w.execute_method.remote(sent, *args, **(kwargs or {})) for w in self.workers]
        future = legacy_graph.RayFuture(
            refs,
            lambda results: results if unique_reply_rank is None else results[unique_reply_rank],
        )
        return future if non_block else future.result(timeout)

    def take_draft_token_ids(self) -> Any:
        """Return the draft tokens of the last stage, which alone has them (defect L-5)."""
        tp = self.parallel_config.tensor_parallel_size
        return self.collective_rpc(
            "take_draft_token_ids", unique_reply_rank=self.parallel_config.world_size - tp
        )

    def check_health(self) -> None:
        """Ask every worker; raises when one is dead, or does not answer within 10 s."""
        self.check_alive()
        ray.get([worker.ping.remote() for worker in self.workers], timeout=10)
        self.collective_rpc("check_health", timeout=10)

    # -- end ---------------------------------------------------------------------------------

    def on_worker_death(self, ranks: list[int], cause: str) -> None:
        """Fail the engine; called by the monitor."""
        self.note_failure(ranks, cause)
        self._resources.release(graceful=False)
        try:
            self.tell_of_failure()
        finally:
            self._resources.free_segments()  # takes longer than the engine should wait for the news

    def shutdown(self) -> None:
        """End the workers and release everything, whether or not a step ever ran. Idempotent."""
        resources = getattr(self, "_resources", None)
        if resources is not None:
            resources.release()
            resources.free_segments()


def refuse(config: Any) -> None:
    """Refuse what this executor would serve wrongly, before any actor starts.

    Raises:
        LegacyRefusedError: what, why and the way out.
    """
    reasons = legacy_limits.reasons(config)
    if config.scheduler_config.async_scheduling:
        reasons.append("async scheduling is not supported (drop --async-scheduling)")
    if reasons:
        raise LegacyRefusedError(legacy_limits.refusal(reasons))


def check_addresses(nodes_and_ips: list[tuple[str, str]]) -> None:
    """Check that nodes and addresses correspond one to one.

    Raises:
        LegacyRefusedError: two nodes share an address, or a node has two.
    """
    pairs = set(nodes_and_ips)
    nodes, ips = {node for node, _ in pairs}, {ip for _, ip in pairs}
    if len(nodes) != len(pairs) or len(ips) != len(pairs):
        raise LegacyRefusedError(
            f"Every node needs one address of its own; Ray reports {sorted(pairs)}. Check the "
            "network, and VLLM_HOST_IP if you set it: it must differ from node to node."
        )


def _update_block_size(worker: Any) -> None:
    from vllm.platforms import current_platform as platform

    platform.update_block_size_for_backend(worker.vllm_config)


def _elastic() -> bool:
    return bool(getattr(envs, "VLLM_ELASTIC_EP_SCALE_UP_LAUNCH", False))


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
