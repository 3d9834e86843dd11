"""Run by test_executors.py as its own process: real engines, and what happens to them.

``python executor_cases.py MODEL EXECUTOR CASE…`` starts an engine for each case, one after the
other in this process (which is also how a restart is tested), and prints one JSON object a case.
EXECUTOR is ``mp``, ``ray`` or ``module:Class``. It says what it saw and judges nothing: the tests
do.

What an executor leaves after its case is written down first and then removed here, so that one
executor's defect does not keep the next engine from starting.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import vllm
from looking import answer, devices_held, held_by_others, is_alive, raised, segments, timed
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from vllm_ray_compat.shared_memory import mapped_segments

#: Seconds after which a case counts as hanging: the process says where every thread is, and ends.
CASE_S = 400

#: Seconds in the start barrier after which a start counts as hanging: every worker has loaded its
#: model by then, and what is left takes milliseconds.
BARRIER_S = 15

#: What an engine in a Ray task needs of this process's environment; Ray's own is there already.
PASSED_ON = ("VLLM_", "RAYCOMPAT_", "HF_", "OMP_")


# -- sent to workers ---------------------------------------------------------------------------


def describe(worker: Any) -> dict[str, Any]:
    """Say which rank this is; vLLM's wrapper or the worker itself comes in."""
    import os
    import sys

    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    inner = getattr(worker, "worker", None) or worker
    ray = sys.modules.get("ray")
    context = ray.get_runtime_context() if ray is not None and ray.is_initialized() else None
    return {
        "rank": inner.rank,
        "local_rank": inner.local_rank,
        "is_driver": inner.is_driver_worker,
        "tp_rank": get_tp_group().rank_in_group,
        "pp_rank": get_pp_group().rank_in_group,
        "pid": os.getpid(),
        "node": context.get_node_id() if context else None,
        "devices": [str(d) for d in context.get_accelerator_ids()["GPU"]] if context else [],
    }


def add(worker: Any, left: int, *, right: int) -> int:
    return left + right


def fail(worker: Any) -> None:
    raise ValueError("raised on purpose")


def doze(worker: Any, seconds: float) -> str:
    import time

    time.sleep(seconds)
    return "awake"


# -- engines -----------------------------------------------------------------------------------


class Case:
    """One engine, what was noticed about it, and what it left."""

    def __init__(self, model: str, executor: str) -> None:
        self.model, self.executor_name = model, executor
        self.uses_ray = executor != "mp"
        self.before = segments()
        self.failed_at: list[float] = []
        self.given: list[Any] = []
        self.noted: set[str] = set()
        self.workers: list[dict[str, Any]] = []
        self.asked = 0

    def config(self, tp: int, pp: int, group: Any = None, **arguments: Any) -> Any:
        backend: Any = self.executor_name
        if ":" in backend:
            module, _, name = backend.partition(":")
            backend = getattr(importlib.import_module(module), name)
        config = vllm.EngineArgs(
            model=self.model,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            distributed_executor_backend=backend,
            enforce_eager=True,
            async_scheduling=False,
            max_model_len=256,
            dtype="float32",
            **arguments,
        ).create_engine_config()
        if group is not None:
            config.parallel_config.placement_group = group
        return config

    def start(self, tp: int = 1, pp: int = 1, *, steps: bool = True, **arguments: Any) -> None:
        """Start an engine; without *steps* only its executor, which has loaded the model then."""
        from vllm import envs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        # An engine in this process has had vLLM remember its variables.
        getattr(envs, "disable_envs_cache", lambda: None)()
        config = self.config(tp, pp, **arguments)
        if steps:
            self.engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
            self.executor = self.engine.engine_core.engine_core.model_executor
        else:
            self.executor = Executor.get_class(config)(config)
        self.executor.register_failure_callback(lambda: self.failed_at.append(time.monotonic()))
        self.workers = self.executor.collective_rpc(describe)
        self.note()

    def group(self, bundles: int) -> Any:
        """Make a placement group of one device a bundle, and wait for it."""
        group = ray.util.placement_group([{"GPU": 1}] * bundles, strategy="PACK")
        ray.get(group.ready())
        self.given.append(group)
        return group

    @property
    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.workers]

    def note(self) -> None:
        """Remember the shared memory of the workers: a dead one can no longer be asked."""
        for pid in [*self.pids, os.getpid()]:
            self.noted |= {path.rpartition("/")[2] for path in mapped_segments(pid)} - self.before

    def about(self) -> dict[str, Any]:
        """What can be said of a live executor without changing it."""
        kind = type(self.executor)
        supports_async = getattr(kind, "supports_async_scheduling", None)
        config = self.executor.parallel_config
        groups = [group.id.hex() for group in self.given]
        mine = getattr(config.placement_group, "id", None)
        return {
            "process": os.getpid(),
            "executor": [f"{k.__module__}:{k.__qualname__}" for k in kind.__mro__],
            "repairs": list(getattr(kind, "raycompat_repairs", ())),
            "workers": self.workers,
            "driver_node": ray.get_runtime_context().get_node_id() if self.uses_ray else None,
            "group_used": groups.index(mine.hex()) if mine and mine.hex() in groups else None,
            "made_group": mine is not None and mine.hex() not in groups,
            "properties": {
                "uses_ray": kind.uses_ray,
                "supports_pp": kind.supports_pp,
                "async_scheduling": supports_async() if supports_async else None,
                "world_size": config.world_size,
            },
        }

    def generate(self, tokens: int = 8) -> list[int]:
        sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.asked += 1
        self.engine.add_request(str(self.asked), "The executor", sampling)
        outputs: list[Any] = []
        while self.engine.has_unfinished_requests():
            outputs += self.engine.step()
        return list(outputs[-1].outputs[0].token_ids)

    def stop(self) -> float:
        """Shut down what was started; returns the seconds it took."""
        self.note()
        shut = self.engine.engine_core if hasattr(self, "engine") else self.executor
        return timed(shut.shutdown)[0]

    def wait_for_failure(self, since: float, limit_s: float = 15) -> float | None:
        while not self.failed_at and time.monotonic() < since + limit_s:
            time.sleep(0.005)
        return round(self.failed_at[0] - since, 3) if self.failed_at else None

    def drain(self) -> None:
        """Drop the answers that an executor has left in its queues, so that the case can go on.

        Not where it counts them itself: it would wait for those that are gone.
        """
        counts = "v2-stale-answers" in getattr(self.executor, "raycompat_repairs", ())
        if hasattr(self.executor, "futures_queue") and not counts:
            for queue in self.executor.response_mqs:
                with contextlib.suppress(TimeoutError):
                    while True:
                        queue.dequeue(timeout=0.3)

    def leftovers(self) -> dict[str, Any]:
        """Say what is left of the engine, then remove it."""
        found: dict[str, Any] = {"alive": [pid for pid in self.pids if is_alive(pid)]}
        if self.uses_ray:
            given = {group.id.hex() for group in self.given}
            left = {
                name: group["state"]
                for name, group in placement_group_table().items()
                if group["state"] != "REMOVED"
            }
            found["groups"] = [state for name, state in left.items() if name not in given]
            found["given"] = [left.get(group.id.hex()) for group in self.given]
            kept = sum(bundle["GPU"] for group in self.given for bundle in group.bundle_specs)
            found["devices_held"] = devices_held(kept) - kept
        for name in ("executor", "engine"):
            self.__dict__.pop(name, None)
        gc.collect()
        # The CPU all-reduce leaves its segments behind when a process is killed, with every
        # executor and on no other device: not looked at, and removed below.
        deadline = time.monotonic() + 5
        while True:
            left_now = {name for name in segments() - self.before if "-cpushm_" not in name}
            left_now -= held_by_others()
            if not left_now or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        found["segments"] = sorted(left_now)
        self.clean()
        return found

    def clean(self) -> None:
        """Remove what is left: groups and what runs in them, processes, shared memory."""
        if self.uses_ray:
            for name, group in placement_group_table().items():
                if group["state"] != "REMOVED":
                    ray.util.remove_placement_group(_group_of(name))
        for pid in self.pids:
            if is_alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.uses_ray:
            devices_held()
        used = held_by_others()
        for name in self.noted - used:
            if name.startswith("psm_") or "-cpushm_" in name:
                Path("/dev/shm", name).unlink(missing_ok=True)


def _group_of(name: str) -> Any:
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(PlacementGroupID.from_hex(name))


def devices_of_bundles(group: Any) -> list[str]:
    """Return the device each bundle holds: what a task in the bundle gets."""

    @ray.remote(num_cpus=0, num_gpus=1, max_retries=0)
    def look() -> str:
        return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])

    strategies = (
        PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        for index in range(len(group.bundle_specs))
    )
    return list(ray.get([look.options(scheduling_strategy=s).remote() for s in strategies]))


# -- cases -------------------------------------------------------------------------------------


def tp2(case: Case) -> dict[str, Any]:
    """An engine that makes its own group: ``collective_rpc`` in all forms, then the end, twice."""
    case.start(tp=2)
    found = {**case.about(), "tokens": len(case.generate())}
    found |= {**calls(case), **ends_twice(case)}
    return {**found, **case.leftovers()}


def calls(case: Case) -> dict[str, Any]:
    rpc = case.executor.collective_rpc
    found: dict[str, Any] = {
        "health": raised(case.executor.check_health),
        "by_name": answer(lambda: rpc("check_health")),
        "callable": answer(lambda: rpc(lambda worker: "called")),
        "arguments": answer(lambda: rpc(add, args=(1,), kwargs={"right": 2})),
        "future": answer(lambda: rpc(add, args=(1,), kwargs={"right": 3}, non_block=True).result()),
        "one_rank": answer(lambda: rpc(describe, unique_reply_rank=1)["rank"]),
        "futures": answer(lambda: futures(rpc)),
    }
    case.drain()
    found["error"] = raised(lambda: rpc(fail))
    found["after_error"] = answer(lambda: rpc(add, args=(2,), kwargs={"right": 2}))
    case.drain()
    found["unknown_method"] = raised(lambda: rpc("no_such_method"))
    case.drain()
    found["future_error"] = raised(lambda: rpc(fail, non_block=True).result())
    case.drain()
    took, found["timeout"] = timed(lambda: raised(lambda: rpc(doze, args=(2.0,), timeout=0.5)))
    found["timeout_s"] = took
    time.sleep(2.5)
    found["after_timeout"] = answer(lambda: rpc(add, args=(3,), kwargs={"right": 2}))
    case.drain()
    found["tokens_again"] = answer(lambda: len(case.generate()))
    return found


def ends_twice(case: Case) -> dict[str, Any]:
    executor = case.executor
    found: dict[str, Any] = {"shutdown_s": case.stop()}
    found["again_s"], found["again"] = timed(lambda: raised(executor.shutdown))
    found["call_after_shutdown"] = raised(lambda: executor.collective_rpc(describe, timeout=10))
    found["callback_after_shutdown"] = case.wait_for_failure(time.monotonic(), 1)
    return found


def futures(rpc: Any) -> list[Any]:
    """Ask twice, and for the second result first."""
    first = rpc(add, args=(1,), kwargs={"right": 1}, non_block=True)
    second = rpc(add, args=(2,), kwargs={"right": 2}, non_block=True)
    late = second.result()
    return [first.result(), late]


def pp2(case: Case) -> dict[str, Any]:
    """An engine in a part of a group it was given; then a worker dies while nothing runs."""
    found: dict[str, Any] = {}
    if case.uses_ray:
        group = case.group(4)
        found["bundle_devices"] = devices_of_bundles(group)
        os.environ["VLLM_RAY_BUNDLE_INDICES"] = "3,1"
        try:
            case.start(pp=2, group=group)
        finally:
            del os.environ["VLLM_RAY_BUNDLE_INDICES"]
    else:
        case.start(pp=2)
    found |= {**case.about(), "tokens": len(case.generate()), **killed_idle(case)}
    return {**found, **case.leftovers()}


def killed_idle(case: Case) -> dict[str, Any]:
    time.sleep(1)
    case.note()
    os.kill(case.pids[1], signal.SIGKILL)
    executor, late = case.executor, list[int]()
    return {
        "callback_s": case.wait_for_failure(time.monotonic()),
        "health": raised(executor.check_health),
        "next": raised(lambda: executor.collective_rpc("check_health", timeout=10)),
        "late_callback_error": raised(
            lambda: executor.register_failure_callback(lambda: late.append(1))
        ),
        "late_callbacks": len(late),
        "callbacks": len(case.failed_at),
        "shutdown_s": answer(case.stop),
    }


def tp2pp2(case: Case) -> dict[str, Any]:
    """Four ranks; an executor that never runs a step is shut down."""
    case.start(tp=2, pp=2, steps=False)
    found = case.about()
    found["shutdown_s"] = case.stop()
    return {**found, **case.leftovers()}


def tp1(case: Case) -> dict[str, Any]:
    """One rank, no step. With Ray in a task, whose placement group the engine inherits.

    The group has one bundle more than the engine needs. An executor that hangs in it is asked
    again in a group that fits.
    """
    if not case.uses_ray:
        found = alone(case.model, case.executor_name)
        case.noted |= set(found.pop("noted"))
        return {**case.leftovers(), **found}
    found = inherited(case, 2)
    if not found["hangs"]:
        return found
    case.clean()
    case.given.clear()
    return {**inherited(case, 1), "hangs": True}


def inherited(case: Case, bundles: int) -> dict[str, Any]:
    group = case.group(bundles)
    variables = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    task = ray.remote(num_cpus=0, max_retries=0)(alone).options(
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            group, placement_group_capture_child_tasks=True
        ),
        runtime_env={"env_vars": variables},
    )
    found: dict[str, Any] = ray.get(task.remote(case.model, case.executor_name))
    case.noted |= set(found.pop("noted", ()))
    if found["hangs"]:
        return found
    return {**case.leftovers(), **found, "inherited": found["group"] == group.id.hex()}


def alone(model: str, executor: str) -> dict[str, Any]:
    """Start one rank and end it; runs in a Ray task, too, where the group is the caller's."""
    case = Case(model, executor)
    if hangs(lambda: case.start(steps=False)):
        return {"hangs": True}
    group = getattr(case.executor.parallel_config.placement_group, "id", None)
    found = {**case.about(), "hangs": False, "group": group.hex() if group else None}
    found["shutdown_s"] = case.stop()
    found["alive"] = [pid for pid in case.pids if is_alive(pid)]
    return {**found, "noted": sorted(case.noted)}


class HangsError(Exception):
    """Raised in a start that waits for ever."""


def hangs(start: Callable[[], None]) -> bool:
    """Run *start*, and say whether it waits for ever for workers to join the message queue.

    In this thread: a Ray task's placement group is not to be seen from another one. So a signal
    ends the wait.
    """
    started, this = threading.Event(), threading.get_ident()

    def interrupt(*_: Any) -> None:
        raise HangsError

    def watch() -> None:
        since = time.monotonic()
        while not started.wait(0.5):
            if not is_in(this, "wait_until_ready"):
                since = time.monotonic()
            elif time.monotonic() > since + BARRIER_S:
                signal.pthread_kill(this, signal.SIGUSR1)
                return

    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        start()
    except HangsError:
        return True
    finally:
        started.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
    return False


def is_in(thread: int, function: str) -> bool:
    frame: Any = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def killed_busy(case: Case) -> dict[str, Any]:
    """A worker dies in the middle of a request."""
    case.start(tp=2)
    found = case.about()
    case.generate()
    case.note()
    ended: list[Any] = []

    def work() -> None:
        text = raised(lambda: [case.generate(200) for _ in range(50)])
        ended.append((time.monotonic(), text))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    at = time.monotonic()
    os.kill(case.pids[1], signal.SIGKILL)
    found["callback_s"] = case.wait_for_failure(at)
    thread.join(20)
    found["error_s"] = round(ended[0][0] - at, 3) if ended else None
    found["error"] = ended[0][1] if ended else None
    found["shutdown_s"] = case.stop()
    return {**found, **case.leftovers()}


def bad_weights(case: Case) -> dict[str, Any]:
    """The workers cannot load the model."""
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "model"
        shutil.copytree(case.model, broken)
        for weights in broken.glob("*.safetensors"):
            weights.write_bytes(weights.read_bytes()[:1000])
        case.model = str(broken)
        took, text = timed(lambda: raised(lambda: case.start(tp=2, steps=False)))
    return {"error": text, "took_s": took, **case.leftovers()}


def dies_at_start(case: Case) -> dict[str, Any]:
    """A worker dies while it loads the model."""
    worker = "executor_cases_worker.DyingWorker"
    took, text = timed(lambda: raised(lambda: case.start(tp=2, steps=False, worker_cls=worker)))
    return {"error": text, "took_s": took, **case.leftovers()}


def main() -> None:
    model, executor, *names = sys.argv[1:]
    if executor != "mp":
        # Held by this process, so that actors and groups can be asked for around engines.
        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=True)
    for name in names:
        faulthandler.dump_traceback_later(CASE_S, exit=True)
        case = Case(model, executor)
        took, found = timed(lambda: globals()[name](case))  # noqa: B023 (called at once)
        print("ANSWER " + json.dumps({"case": name, "total_s": took, **found}), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
