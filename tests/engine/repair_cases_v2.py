"""The cases of test_repairs_v2.py: RayExecutorV2 as vLLM ships it, repaired or not."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group_table
from repair_cases import Start, main, make_config, so_far
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.platforms import current_platform
from vllm.v1.executor import ray_executor_v2

from vllm_ray_compat.schedule import REPAIRED_EXECUTORS, VLLM_EXECUTORS, Backend


@contextlib.contextmanager
def instead(module: Any, **values: Any) -> Iterator[None]:
    """Give *module* these attributes for a time, whether it has others of the names or not."""
    missing = object()
    before = {name: vars(module).get(name, missing) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                delattr(module, name)
            else:
                setattr(module, name, value)


def dies_while_loading(model: str) -> dict[str, Any]:
    """The worker of rank 1 is killed in ``load_model``."""
    start = Start(make_config(model, worker_cls="executor_cases_worker.DyingWorker"))
    found = {"outcome": start.outcome, **start.leftovers()}
    start.clean_up()
    return found


def dies_before_the_barrier(model: str) -> dict[str, Any]:
    """The worker of rank 1 is killed when it is asked to run: nothing looks at it any more."""
    run = ray_executor_v2.RayWorkerHandle.run

    def dies(handle: Any) -> None:
        if handle.rank == 1:
            ray.kill(handle.actor)
            with contextlib.suppress(ray.exceptions.RayActorError):
                while True:  # until it is dead: it must not get as far as the barrier
                    ray.get(handle.actor.__ray_ready__.remote())
        run(handle)

    with instead(ray_executor_v2.RayWorkerHandle, run=dies):
        start = Start(make_config(model))
    found = {"outcome": start.outcome, **start.leftovers()}
    start.clean_up()
    return found


def never_loads(model: str) -> dict[str, Any]:
    """The worker of rank 1 sleeps in ``load_model``."""
    os.environ["VLLM_ENGINE_READY_TIMEOUT_S"] = "20"
    try:
        start = Start(make_config(model, worker_cls="executor_cases_worker.SleepingWorker"))
    finally:
        del os.environ["VLLM_ENGINE_READY_TIMEOUT_S"]
    found = {"outcome": start.outcome, **start.leftovers()}
    start.clean_up()
    return found


def fail(_worker: Any) -> None:
    raise ValueError("raised on purpose")


def echo(_worker: Any, what: str) -> str:
    return what


def doze(_worker: Any) -> None:
    time.sleep(2)


def told(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the error is an answer
        return f"{type(error).__name__}: {error}"


def calls_and_end(model: str) -> dict[str, Any]:
    """Calls that fail or are late, the ones after them, and a clean end."""
    start = Start(make_config(model))
    found = so_far
    found["outcome"] = start.outcome
    rpc = start.executor.collective_rpc
    for name, call in (
        ("failed", lambda: rpc(fail)),
        ("after_failed", lambda: rpc(echo, args=("first",))),
        ("future", lambda: rpc(echo, args=("second",), non_block=True).result()),
        ("late", lambda: rpc(doze, timeout=0.2)),
        ("after_late", lambda: rpc(echo, args=("third",))),
        ("one", lambda: rpc(echo, args=("fourth",), unique_reply_rank=1)),
        ("unsendable", lambda: rpc(echo, args=(threading.Lock(),))),
        ("last", lambda: rpc(echo, args=("fifth",))),
    ):
        found[name] = told(call)
    began = time.monotonic()
    start.executor.shutdown()
    found["shutdown_s"] = round(time.monotonic() - began, 2)
    start.executor.shutdown()
    found.update(start.leftovers())
    start.clean_up()
    return found


def oversized_group(model: str) -> dict[str, Any]:
    """Three bundles for two workers."""
    config = make_config(model)
    group = ray.util.placement_group([{"GPU": 1}] * 3, strategy="STRICT_PACK")
    ray.get(group.ready())
    config.parallel_config.placement_group = group
    start = Start(config)
    found: dict[str, Any] = {"outcome": start.outcome}
    if start.outcome == "ready":
        found["health"] = start.executor.collective_rpc("check_health")
    start.clean_up()
    return found


def spread_group() -> Any:
    group = ray.util.placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    return group


def bundle_order(model: str) -> dict[str, Any]:
    """Rank 0 on another node, rank 1 on the driver's."""
    here = ray.get_runtime_context().get_node_id()
    config = make_config(model, tensor_parallel_size=1, pipeline_parallel_size=2)
    group = spread_group()
    nodes = placement_group_table(group)["bundles_to_node_id"]
    config.parallel_config.placement_group = group
    remote = next(bundle for bundle in (0, 1) if nodes[bundle] != here)
    os.environ["VLLM_RAY_BUNDLE_INDICES"] = f"{remote},{1 - remote}"
    handles: list[Any] = []  # of the broadcast queue; a failure takes it from the executor

    def export_handle(queue: Any) -> Any:
        handles.append(queue.handle)
        return queue.handle

    try:
        with instead(MessageQueue, export_handle=export_handle):
            start = Start(config)
    finally:
        del os.environ["VLLM_RAY_BUNDLE_INDICES"]
    executor = start.executor
    found: dict[str, Any] = {"outcome": start.outcome}
    found["on_this_node"] = [h.rank for h in executor.ray_worker_handles if h.node_id == here]
    found["by_shared_memory"] = list(handles[0].local_reader_ranks)
    if start.outcome == "ready":
        try:
            found["health"] = executor.collective_rpc("check_health", timeout=10)
        except Exception as error:  # a worker that cannot read does not answer
            found["health"] = type(error).__name__
    start.clean_up()
    return found


def init_method(worker: Any) -> str:
    return str(getattr(worker, "worker", worker).distributed_init_method)


def store_port(model: str) -> dict[str, Any]:
    """Somebody takes the port that vLLM chose for the store before rank 0 binds it."""
    config = make_config(model)
    found: dict[str, Any] = {}
    if select := getattr(ray_executor_v2.RayExecutorV2, "_select_tcpstore_port", None):
        parallel = config.parallel_config
        found["first_choice"] = select(
            parallel.data_parallel_rank_local, parallel.data_parallel_master_port
        )
    with socket.create_server(("", 0)) as other:
        found["taken"] = other.getsockname()[1]

        def choose(*args: Any, **kwargs: Any) -> int:
            return int(found["taken"])

        with instead(ray_executor_v2, get_open_port=choose, _get_open_port=choose):
            start = Start(config)
    found["outcome"] = start.outcome
    if start.outcome == "ready":
        found["used"] = start.executor.collective_rpc(init_method)
    start.clean_up()
    return found


def queue_port(model: str) -> dict[str, Any]:
    """Somebody takes the port of a queue between nodes as soon as it was chosen."""
    config = make_config(
        model,
        tensor_parallel_size=1,
        pipeline_parallel_size=2,
        worker_cls="executor_cases_worker.RobbedWorker",
    )
    config.parallel_config.placement_group = spread_group()
    with socket.create_server(("", 0)) as probe:
        os.environ["VLLM_PORT"] = str(probe.getsockname()[1])
    try:
        start = Start(config)
    finally:
        del os.environ["VLLM_PORT"]
    found: dict[str, Any] = {"outcome": start.outcome}
    if start.outcome == "ready":
        found["health"] = start.executor.collective_rpc("check_health", timeout=10)
    start.clean_up()
    return found


def actor_names(model: str) -> dict[str, Any]:
    """Two data parallel engines of one job, in one process."""
    first = make_config(model, tensor_parallel_size=1)
    second = copy.deepcopy(first)
    second.parallel_config.data_parallel_index = 1
    starts = [Start(first), Start(second)]
    for start in starts:
        start.clean_up()
    return {"outcomes": [start.outcome for start in starts]}


BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def is_there_at_import(_worker: Any) -> bool:
    """Say whether the variable is in the environment this process was started with."""
    first = Path("/proc/self/environ").read_bytes().split(b"\0")
    return f"{BREAKABLE}=1".encode() in first


def worker_import_environment(model: str) -> dict[str, Any]:
    """The variable is set when Ray runs already, as ``VllmConfig`` does it."""
    os.environ[BREAKABLE] = "1"
    try:
        start = Start(make_config(model, tensor_parallel_size=1))
        kind = executor_class(Backend.LEGACY)
        legacy = kind.__new__(kind)._update_noset_device_env_vars({})
    finally:
        del os.environ[BREAKABLE]
    found: dict[str, Any] = {"outcome": start.outcome}
    found["legacy"] = legacy["runtime_env"]["env_vars"].get(BREAKABLE)
    if start.outcome == "ready":
        found["v2"] = start.executor.collective_rpc(is_there_at_import)
    start.clean_up()
    return found


def executor_class(backend: Backend) -> Any:
    """Return what the environment makes of *backend*: vLLM's executor, or that repaired."""
    table = VLLM_EXECUTORS if os.environ["RAYCOMPAT_REPAIRS"] == "none" else REPAIRED_EXECUTORS
    module, _, name = table[backend].partition(":")
    return getattr(importlib.import_module(module), name)


class EnoughError(Exception):
    """Ends a start that has shown what was asked."""


def device_count(model: str) -> dict[str, Any]:
    """vLLM starts Ray itself, on what it takes for ROCm with eight devices."""
    asked: list[Any] = []

    def init(*args: Any, **kwargs: Any) -> None:
        if args == ("auto",):
            raise ConnectionError("there is none")
        asked.append(kwargs["num_gpus"])
        raise EnoughError

    config = make_config(model)
    platform = type(current_platform)
    with (
        instead(ray, init=init, is_initialized=lambda: False),
        instead(platform, is_rocm=lambda self: True, device_count=classmethod(lambda cls: 8)),
    ):
        outcomes = [
            Start(config, executor_class(backend)).outcome
            for backend in (Backend.V2, Backend.LEGACY)
        ]
    return {"outcomes": outcomes, "num_gpus": asked}


if __name__ == "__main__":
    main(globals())
