"""Start vLLM's own Ray executors, bare, and tell what came of it; run as its own process.

A bare executor (its workers load the model, nothing is served) is a start in half the time of an
engine. A start runs in a thread, because without the repairs some never end.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from looking import devices_free, groups_left, held_by_others, segments
from ray.util.placement_group import remove_placement_group
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.executor.abstract import Executor

#: Seconds at the barrier after which a start counts as hanging. It takes well below one.
PATIENCE_S = 12.0
#: Seconds for everything before it.
NEVER_S = 150.0
#: Seconds after which a case as a whole counts as hanging: without repairs some do, in calls that
#: no thread can be woken from.
CASE_S = 400.0

#: What the case under way has found so far; told when it hangs.
so_far: dict[str, Any] = {}


def make_config(model: str, **arguments: Any) -> Any:
    return EngineArgs(
        model=model,
        **{
            "tensor_parallel_size": 2,
            "distributed_executor_backend": "ray",
            "enforce_eager": True,
            "max_model_len": 256,
            "dtype": "float32",
            **arguments,
        },
    ).create_engine_config()


class Start:
    """An executor, started in a thread.

    Attributes:
        outcome: ``ready``, ``hangs``, or what was raised.
    """

    def __init__(self, config: Any, kind: Any = None) -> None:
        self.before = segments()
        self.config = config
        self.raised = ""
        self.outcome = ""
        kind = kind or Executor.get_class(config)
        self.executor = kind.__new__(kind)
        self._thread = threading.Thread(target=self._run, daemon=True)
        began = time.monotonic()
        self._thread.start()
        self._await()
        self.took_s = round(time.monotonic() - began, 1)

    def _run(self) -> None:
        try:
            self.executor.__init__(self.config)
        except BaseException as error:  # what it is, is the answer
            self.raised = f"{type(error).__name__}: {error}"

    def _await(self) -> None:
        began, at_barrier = time.monotonic(), 0.0
        while self._thread.is_alive():
            self._thread.join(0.1)
            now = time.monotonic()
            handles = getattr(self.executor, "ray_worker_handles", [])
            if not at_barrier and handles and all(h.run_ref is not None for h in handles):
                at_barrier = now
            if (at_barrier and now > at_barrier + PATIENCE_S) or now > began + NEVER_S:
                self.outcome = "hangs"
                return
        self.outcome = self.raised or "ready"

    def leftovers(self) -> dict[str, Any]:
        """What the executor has not given back, after a moment."""
        handles = getattr(self.executor, "ray_worker_handles", [])
        alive = [h.rank for h in handles if answers(h.actor)]
        del handles
        found = {"groups": groups_left(), "alive": alive}
        found["free"] = devices_free() == ray.cluster_resources()["GPU"]
        gc.collect()
        # The CPU's own all-reduce, of a worker that was killed; no executor can help it.
        for path in Path("/dev/shm").glob("*-cpushm_*"):
            if path.name not in self.before | held_by_others():
                path.unlink(missing_ok=True)
        end = time.monotonic() + 5
        while (left := segments() - self.before - held_by_others()) and time.monotonic() < end:
            time.sleep(0.2)
        return {**found, "segments": sorted(left)}

    def clean_up(self) -> None:
        """Give back what the executor has not, so that the next case has devices."""
        with contextlib.suppress(Exception):
            self.executor.shutdown()
        for handle in getattr(self.executor, "ray_worker_handles", []):
            with contextlib.suppress(Exception):
                ray.kill(handle.actor)
        group = self.config.parallel_config.placement_group
        if group is not None:
            remove_placement_group(group)
        devices_free()
        # What workers that were killed have left: without repairs nobody frees it, and the CPU's own
        # all-reduce (cpushm) never, when a worker is killed before it has ended by itself.
        end = time.monotonic() + 5
        while left := {
            name
            for name in segments() - self.before
            if name.startswith("psm_") or "-cpushm_" in name
        }:
            for name in left - held_by_others():
                Path("/dev/shm", name).unlink(missing_ok=True)
            if time.monotonic() > end:
                break
            time.sleep(0.2)


def answers(actor: Any) -> bool:
    """Say whether *actor* still runs: a busy one does not answer, a dead one fails."""
    done, _ = ray.wait([actor.__ray_call__.remote(lambda _: None)], timeout=5)
    try:
        ray.get(done, timeout=1)
    except Exception:
        return False
    return True


def tell(case: str, began: float, found: dict[str, Any]) -> None:
    took = round(time.monotonic() - began, 1)
    print("ANSWER " + json.dumps({"case": case, "total_s": took, **found}), flush=True)


def give_up(case: str, began: float) -> None:
    """Say that *case* hangs, and end the process: Ray ends its actors and groups with it."""
    faulthandler.dump_traceback(all_threads=True)
    tell(case, began, {**so_far, "outcome": "hangs"})
    os._exit(0)


def main(cases: dict[str, Any]) -> None:
    """Run the cases named on the command line, after the model; up to one that hangs."""
    model, *names = sys.argv[1:]
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=True)
    for name in names:
        so_far.clear()
        began = time.monotonic()
        watch = threading.Timer(CASE_S, give_up, (name, began))
        watch.daemon = True
        watch.start()
        found = cases[name](model)
        watch.cancel()
        tell(name, began, found)
    # A hanging start has left a thread that nothing wakes; Python's exit would wait for ZeroMQ.
    os._exit(0)
