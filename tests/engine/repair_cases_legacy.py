"""Run by test_repairs_legacy.py as its own process, with repairs and again without.

``python repair_cases_legacy.py MODEL CASE…`` prints one JSON object a case. A case starts a real
executor with workers that hold no model; engines that do are asked in tests/conformance.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ray
from looking import devices_free, groups_left, is_alive, raised, timed
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.executor.abstract import Executor

from vllm_ray_compat.executors.repairs.replacing import replaced

#: Seconds after which a death was not noticed; with the repair it takes well below one.
UNNOTICED_S = 8.0
#: More than a channel of Ray's has buffers, so that every one of them is used again.
STEPS = 25


def configuration(model: str, worker: str = "FakeWorker") -> Any:
    return EngineArgs(
        model=model,
        pipeline_parallel_size=2,
        distributed_executor_backend="ray",
        worker_cls=f"repair_cases_worker.{worker}",
        enforce_eager=True,
        async_scheduling=False,
        max_model_len=256,
        dtype="float32",
    ).create_engine_config()


def start(model: str, worker: str = "FakeWorker") -> Any:
    config = configuration(model, worker)
    return Executor.get_class(config)(config)


def refusals(model: str) -> dict[str, Any]:
    """Configurations that are refused, and whether Ray was asked for anything."""
    from vllm.config import KVTransferConfig
    from vllm.v1.executor import ray_executor

    def reached(*_: Any) -> None:
        raise RuntimeError("Ray was reached")

    def attempt(change: Callable[[Any], None]) -> str:
        config = configuration(model)
        before = os.environ["VLLM_USE_V2_MODEL_RUNNER"]
        change(config)
        with replaced(ray_executor, initialize_ray_cluster=reached):
            text = raised(lambda: Executor.get_class(config)(config))
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = before
        return text

    def runner(_config: Any) -> None:  # now: with it, vLLM wants Triton to make a configuration
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

    def pooling(config: Any) -> None:
        runner(config)
        config.parallel_config.pipeline_parallel_size = 1
        config.model_config.runner_type = "pooling"

    def kv(config: Any) -> None:
        config.kv_transfer_config = KVTransferConfig(kv_connector="any", kv_role="kv_both")

    def context(config: Any) -> None:
        config.parallel_config.prefill_context_parallel_size = 2

    def ec(config: Any) -> None:
        config.ec_transfer_config = SimpleNamespace(is_ec_consumer=True, is_ec_producer=False)

    found = {
        "legacy-kv-connector": attempt(kv),
        "legacy-context-parallel": attempt(context),
        "legacy-ec-connector": attempt(ec),
        "legacy-model-runner": attempt(runner),
        "pooling": attempt(pooling),
        "accepted": attempt(lambda config: None),
    }
    return {**found, "ray": ray.is_initialized()}


def ranks(wrapper: Any) -> tuple[int, int]:
    return wrapper.rpc_rank, wrapper.global_rank


def step(executor: Any, *, non_block: bool) -> Any:
    scheduled = SimpleNamespace(total_num_scheduled_tokens=1, scheduled_new_reqs=[])
    executor.execute_model(scheduled, non_block=non_block)
    output = executor.sample_tokens(None, non_block=non_block)
    return output.result() if non_block else output


def examine(executor: Any) -> dict[str, Any]:
    rpc = executor.collective_rpc
    found: dict[str, Any] = {
        "executor": f"{type(executor).__module__}:{type(executor).__qualname__}",
        "repairs": list(getattr(executor, "raycompat_repairs", ())),
        "call": rpc(ranks),
        "future": None,
        "drafts": executor.take_draft_token_ids(),
        "health": raised(executor.check_health),
    }
    found["future_error"] = raised(lambda: found.update(future=rpc(ranks, non_block=True).result()))
    kept: list[Any] = []

    def steps() -> None:
        for i in range(STEPS):
            kept.append(step(executor, non_block=bool(i % 2)))

    found["steps_s"], found["steps"] = timed(lambda: raised(steps))
    found["own_memory"] = [bool(one.logprobs[0].flags.writeable) for one in kept]
    rpc("adjust_rank", args=({0: 7, 1: 8},))
    found["adjusted"] = rpc(ranks)
    return found


def parts(model: str) -> dict[str, Any]:
    """Calls and steps of one executor, which nobody shuts down: it is collected."""
    executor = start(model)
    config = executor.vllm_config
    found = examine(executor)
    del executor
    gc.collect()
    found["group_forgotten"] = config.parallel_config.placement_group is None
    return {**found, "groups": groups_left(), "devices_free": devices_free()}


def given_group(model: str) -> dict[str, Any]:
    """A placement group that was given to the engine is not the engine's to remove."""
    group = ray.util.placement_group([{"GPU": 1.0}, {"GPU": 1.0}])
    assert group.wait(60)
    config = configuration(model)
    config.parallel_config.placement_group = group
    executor = Executor.get_class(config)(config)
    executor.shutdown()
    again = raised(executor.shutdown)
    found = {
        "again": again,
        "groups": groups_left(),
        "kept": config.parallel_config.placement_group is group,
    }
    del executor, config
    ray.util.remove_placement_group(group)
    found["devices_free"] = devices_free()
    return found


def pid(_wrapper: Any) -> int:
    return os.getpid()


def unused(model: str) -> dict[str, Any]:
    """An executor that never ran a step is shut down."""
    executor = start(model)
    pids = executor.collective_rpc(pid)
    took, _ = timed(executor.shutdown)
    alive = [one for one in pids if is_alive(one)]
    found = {"shutdown_s": took, "alive": alive, "groups": groups_left()}
    for one in alive:
        os.kill(one, signal.SIGKILL)
    return found


def killed(model: str) -> dict[str, Any]:
    """A worker dies while nothing runs."""
    executor = start(model)
    called: list[float] = []
    executor.register_failure_callback(lambda: called.append(time.monotonic()))
    pids = executor.collective_rpc(pid)
    os.kill(pids[1], signal.SIGKILL)
    killed_at = time.monotonic()
    while not called and time.monotonic() < killed_at + UNNOTICED_S:
        time.sleep(0.01)
    return {
        "callback_s": round(called[0] - killed_at, 3) if called else None,
        "callbacks": len(called),
        "health": raised(executor.check_health),
        "next": raised(lambda: executor.collective_rpc(pid)),
        "shutdown": raised(executor.shutdown),
        "groups": groups_left(),
    }


def failed_start(model: str) -> dict[str, Any]:
    """The workers cannot load the model."""
    error: list[BaseException] = []
    try:
        start(model, "BrokenWorker")
    except Exception as caught:
        error.append(caught)
    found = {"error": f"{type(error[0]).__name__}: {error[0]}"}
    return {**found, "groups": groups_left(), "devices_free": devices_free()}


def clear() -> None:
    """Remove what a case without repairs has left, so that the next one can start."""
    from ray.util.placement_group import PlacementGroup, placement_group_table

    gc.collect()
    for name, group in placement_group_table().items():
        if group["state"] != "REMOVED":
            identity = ray.PlacementGroupID(bytes.fromhex(name))
            ray.util.remove_placement_group(PlacementGroup(identity))
    devices_free()


def main() -> None:
    model, *names = sys.argv[1:]
    for name in names:
        if name != "refusals" and not ray.is_initialized():
            ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=True)
        took, found = timed(lambda: globals()[name](model))  # noqa: B023 (called at once)
        print("ANSWER " + json.dumps({"case": name, "total_s": took, **found}), flush=True)
        if ray.is_initialized():
            clear()


if __name__ == "__main__":
    main()
