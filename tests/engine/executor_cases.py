"""Run by test_executors.py as its own process: real engines, and what happens to them.

``python executor_cases.py MODEL EXECUTOR CASE…`` starts an engine for each case, one after the
other in this process (which is also how a restart is tested), and prints one JSON object a case.
EXECUTOR is ``ray`` or ``module:Class``.
"""

from __future__ import annotations

import contextlib
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

import psutil
import ray
import vllm
from ray.util.placement_group import placement_group_table

from vllm_ray_compat.parity.ownership import mapped_segments


def whoami(worker: Any) -> tuple[int, int]:
    """Sent to workers as a function; vLLM's wrapper or the worker itself comes in."""
    return int(getattr(worker, "rpc_rank", getattr(worker, "rank", -1))), os.getpid()


def add(worker: Any, left: int, *, right: int) -> int:
    return left + right


def fail(worker: Any) -> None:
    raise ValueError("raised on purpose")


def doze(worker: Any, seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def segments() -> set[str]:
    """What is in /dev/shm but for Compiled Graph's semaphores: Ray frees them at its own end."""
    return {p.name for p in Path("/dev/shm").iterdir() if not p.name.startswith("sem.")}


def held_by_others() -> set[str]:
    """Segments that processes other than this one use: not left behind, and maybe not ours."""
    pids = (pid for pid in psutil.pids() if pid != os.getpid())
    return {path.rpartition("/")[2] for pid in pids for path in mapped_segments(pid)}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = call()
    return round(time.monotonic() - began, 3), result


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:  # which one is what is asked
        return f"{type(error).__name__}: {error}"
    return ""


def groups_left() -> list[str]:
    return [g["state"] for g in placement_group_table().values() if g["state"] != "REMOVED"]


def devices_free() -> float:
    """Devices that no actor and no placement group holds; waits a moment for Ray to notice."""
    free = 0.0
    for _ in range(50):
        free = ray.available_resources().get("GPU", 0.0)
        if free == ray.cluster_resources().get("GPU"):
            break
        time.sleep(0.1)
    return float(free)


class Case:
    """One engine, what was noticed about it, and what it left."""

    def __init__(self, model: str, executor: str) -> None:
        self.model, self.executor_name = model, executor
        self.before = segments()
        self.failed_at: list[float] = []

    def start(self, **arguments: Any) -> None:
        backend: Any = self.executor_name
        if ":" in backend:
            module, _, name = backend.partition(":")
            backend = getattr(importlib.import_module(module), name)
        self.llm = vllm.LLM(
            model=self.model,
            **{
                "tensor_parallel_size": 2,
                "distributed_executor_backend": backend,
                "enforce_eager": True,
                "async_scheduling": False,
                "max_model_len": 256,
                "disable_log_stats": True,
                "dtype": "float32",
                **arguments,
            },
        )
        self.executor = self.llm.llm_engine.engine_core.engine_core.model_executor
        self.executor.register_failure_callback(lambda: self.failed_at.append(time.monotonic()))
        self.pids = dict(self.executor.collective_rpc(whoami))

    def generate(self, tokens: int = 8) -> list[int]:
        sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        (output,) = self.llm.generate(["The executor"], sampling, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def wait_for_failure(self, since: float, limit_s: float = 15) -> float | None:
        while not self.failed_at and time.monotonic() < since + limit_s:
            time.sleep(0.005)
        return round(self.failed_at[0] - since, 3) if self.failed_at else None

    def leftovers(self) -> dict[str, Any]:
        found = {"groups": groups_left(), "devices_free": devices_free()}
        alive = [pid for pid in getattr(self, "pids", {}).values() if _alive(pid)]
        self.__dict__.pop("executor", None)
        self.__dict__.pop("llm", None)
        import gc

        gc.collect()
        # vLLM's CPU all-reduce leaves its segments behind when a process is killed, with every
        # executor and on no other device.
        used = held_by_others()
        for path in Path("/dev/shm").glob("*-cpushm_*"):
            if path.name not in self.before | used:
                path.unlink(missing_ok=True)
        deadline = time.monotonic() + 5
        while (left := segments() - self.before - held_by_others()) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
        return {**found, "alive": alive, "segments": sorted(left)}


def _alive(pid: int) -> bool:
    for _ in range(30):
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                time.sleep(0.1)
                continue
        return False
    return True


def calls(case: Case) -> dict[str, Any]:
    """``collective_rpc`` in all its forms, then a clean end, twice."""
    case.start()
    rpc = case.executor.collective_rpc
    found: dict[str, Any] = {
        "executor": f"{type(case.executor).__module__}:{type(case.executor).__qualname__}",
        "ranks": [rank for rank, _ in rpc(whoami)],
        "arguments": rpc(add, args=(1,), kwargs={"right": 2}),
        "by_name": rpc("check_health"),
        "future": rpc(add, args=(1,), kwargs={"right": 3}, non_block=True).result(),
        "one_rank": rpc(whoami, unique_reply_rank=1)[0],
        "error": raised(lambda: rpc(fail)),
        "unknown_method": raised(lambda: rpc("no_such_method")),
        "future_error": raised(lambda: rpc(fail, non_block=True).result()),
        "after_error": rpc(add, args=(2,), kwargs={"right": 2}),
        "health": raised(case.executor.check_health),
    }
    took, text = timed(lambda: raised(lambda: rpc(doze, args=(2.0,), timeout=0.5)))
    found["timeout"], found["timeout_s"] = text, took
    time.sleep(2.5)
    found["tokens"] = len(case.generate())
    engine = case.llm.llm_engine.engine_core
    found["shutdown_s"], _ = timed(engine.shutdown)
    found["again_s"], _ = timed(case.executor.shutdown)
    found["callback_after_shutdown"] = case.wait_for_failure(time.monotonic(), 1)
    return {**found, **case.leftovers()}


def unused(case: Case) -> dict[str, Any]:
    """An engine that never ran a step is shut down."""
    case.start()
    took, _ = timed(case.llm.llm_engine.engine_core.shutdown)
    return {"shutdown_s": took, **case.leftovers()}


def killed_idle(case: Case) -> dict[str, Any]:
    """A worker dies while nothing runs."""
    case.start()
    case.generate()
    time.sleep(1)
    os.kill(case.pids[1], signal.SIGKILL)
    took = case.wait_for_failure(time.monotonic())
    found = {"callback_s": took, "next": raised(case.generate), "callbacks": len(case.failed_at)}
    found["shutdown_s"], _ = timed(case.executor.shutdown)
    return {**found, **case.leftovers()}


def killed_busy(case: Case) -> dict[str, Any]:
    """A worker dies in the middle of a request."""
    case.start()
    case.generate()
    ended: list[Any] = []

    def work() -> None:
        text = raised(lambda: [case.generate(200) for _ in range(50)])
        ended.append((time.monotonic(), text))

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    at = time.monotonic()
    os.kill(case.pids[1], signal.SIGKILL)
    took = case.wait_for_failure(at)
    thread.join(20)
    found: dict[str, Any] = {
        "callback_s": took,
        "error_s": round(ended[0][0] - at, 3) if ended else None,
        "error": ended[0][1] if ended else None,
    }
    found["shutdown_s"], _ = timed(case.executor.shutdown)
    return {**found, **case.leftovers()}


def bad_weights(case: Case) -> dict[str, Any]:
    """The workers cannot load the model."""
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "model"
        shutil.copytree(case.model, broken)
        for weights in broken.glob("*.safetensors"):
            weights.write_bytes(weights.read_bytes()[:1000])
        case.model = str(broken)
        took, text = timed(lambda: raised(case.start))
    return {"error": text, "took_s": took, **case.leftovers()}


def dies_at_start(case: Case) -> dict[str, Any]:
    """A worker dies while it loads the model."""
    took, text = timed(
        lambda: raised(lambda: case.start(worker_cls="executor_cases_worker.DyingWorker"))
    )
    return {"error": text, "took_s": took, **case.leftovers()}


def main() -> None:
    model, executor, *names = sys.argv[1:]
    # Held by this process, so that actors and groups can be asked for before and after engines.
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=True)
    for name in names:
        case = Case(model, executor)
        took, found = timed(lambda: globals()[name](case))  # noqa: B023 (called at once)
        print("ANSWER " + json.dumps({"case": name, "total_s": took, **found}), flush=True)


if __name__ == "__main__":
    main()
