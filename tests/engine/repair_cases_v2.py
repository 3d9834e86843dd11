"""The cases of test_repairs_v2.py: RayExecutorV2 as vLLM ships it, repaired or not."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.util.placement_group import placement_group_table
from repair_cases import Start, main, make_config
from vllm.v1.executor import ray_executor_v2


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
        run(handle)

    ray_executor_v2.RayWorkerHandle.run = dies
    try:
        start = Start(make_config(model))
    finally:
        ray_executor_v2.RayWorkerHandle.run = run
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


def bundle_order(model: str) -> dict[str, Any]:
    """Rank 0 on another node, rank 1 on the driver's."""
    here = ray.get_runtime_context().get_node_id()
    config = make_config(model, tensor_parallel_size=1, pipeline_parallel_size=2)
    group = ray.util.placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    nodes = placement_group_table(group)["bundles_to_node_id"]
    config.parallel_config.placement_group = group
    remote = next(bundle for bundle in (0, 1) if nodes[bundle] != here)
    os.environ["VLLM_RAY_BUNDLE_INDICES"] = f"{remote},{1 - remote}"
    try:
        start = Start(config)
    finally:
        del os.environ["VLLM_RAY_BUNDLE_INDICES"]
    executor = start.executor
    found: dict[str, Any] = {"outcome": start.outcome}
    found["on_this_node"] = [h.rank for h in executor.ray_worker_handles if h.node_id == here]
    found["by_shared_memory"] = list(executor.rpc_broadcast_mq.handle.local_reader_ranks)
    if start.outcome == "ready":
        try:
            found["health"] = executor.collective_rpc("check_health", timeout=10)
        except Exception as error:  # a worker that cannot read does not answer
            found["health"] = type(error).__name__
    start.clean_up()
    return found


if __name__ == "__main__":
    main(globals())
