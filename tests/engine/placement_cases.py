"""The cases of test_placement.py: a Ray executor, bare, in placement groups of every kind.

Run as its own process, of one backend (the flag says which): ``placement_cases.py MODEL CASE...``.
``PLACEMENT_EXECUTOR=module:Class`` in the environment takes another executor, to compare by hand.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import ray
from looking import answer, devices_held, groups_left
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from repair_cases import Start, main, make_config

from vllm_ray_compat.executors.placement_wait import TIMEOUT_NAME
from vllm_ray_compat.executors.rank_order import INDICES_NAME
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity.ownership import descendants, kill_all

#: Three bundles with a device, and one without, which is not the last.
BUNDLES: list[dict[str, float]] = [{"GPU": 1}, {"CPU": 1}, {"GPU": 1}, {"GPU": 1}]

HOST_IP = "VLLM_HOST_IP"

#: What says which executor runs.
DECISIVE = (FLAG_NAME, "RAYCOMPAT_RESTORE_LEGACY", "PLACEMENT_EXECUTOR")


def executor_class(config: Any) -> Any:
    """Return what runs: what vLLM takes, which this package decides, or the one asked for."""
    from vllm.v1.executor.abstract import Executor

    module, _, name = os.environ.get("PLACEMENT_EXECUTOR", "").partition(":")
    return getattr(importlib.import_module(module), name) if module else Executor.get_class(config)


def kind(executor: Any) -> str:
    return f"{type(executor).__module__}:{type(executor).__name__}"


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def group(bundles: list[dict[str, float]], **more: Any) -> Iterator[PlacementGroup]:
    made = placement_group(bundles, **more)
    try:
        yield made
    finally:
        remove_placement_group(made)


def ready(made: PlacementGroup) -> PlacementGroup:
    assert made.wait(30)
    return made


def bundle(_worker: Any) -> int:
    """Return the bundle that a worker runs in, by the resource that Ray has given it."""
    # The runtime context calls it GPU, whatever the bundle.
    names = ",".join(ray._private.worker.global_worker.core_worker.resource_ids())
    found = re.search(r"GPU_group_(\d+)_", names)
    assert found, names
    return int(found.group(1))


def actors() -> dict[str, str]:
    """Return the states of all actors there ever were."""
    return {i: actor["State"] for i, actor in ray._private.state.actors().items()}


def run(config: Any) -> dict[str, Any]:
    """Start an executor; tell where its ranks are, and end it."""
    start = Start(config, executor_class(config))
    found: dict[str, Any] = {"outcome": start.outcome, "took_s": start.took_s}
    if start.outcome == "ready":
        found["bundles"] = start.executor.collective_rpc(bundle)
        found["kind"] = kind(start.executor)
        start.executor.shutdown()
    end = time.monotonic() + 10
    while (alive := [s for s in actors().values() if s != "DEAD"]) and time.monotonic() < end:
        time.sleep(0.1)
    return {**found, **start.leftovers(), "alive": alive}


def starts(model: str) -> dict[str, Any]:
    """In a group of the client's with more bundles than ranks, listed and not."""
    config = make_config(model)
    found = {}
    with group(BUNDLES) as given:
        for name, listed in (("listed", " 3, 0"), ("extra", "")):
            config.parallel_config.placement_group = ready(given)
            with variables(**{INDICES_NAME: listed}):
                found[name] = run(config)
    found["held"] = devices_held()
    return found


class Inside:
    """An actor in a placement group, in which an engine starts."""

    def run(self, model: str) -> dict[str, Any]:
        config = make_config(model)
        executor = executor_class(config)(config)
        try:
            return {"bundles": executor.collective_rpc(bundle), "kind": kind(executor)}
        finally:
            executor.shutdown()


def inside(model: str) -> dict[str, Any]:
    """In the group that the engine's process runs in."""
    with group(BUNDLES) as made:
        where = PlacementGroupSchedulingStrategy(
            ready(made), placement_group_bundle_index=1, placement_group_capture_child_tasks=True
        )
        # An actor has the environment that Ray was started with, and it decides what runs.
        mine = {name: os.environ[name] for name in DECISIVE if name in os.environ}
        options = {"num_cpus": 1, "runtime_env": {"env_vars": mine}}
        actor = ray.remote(Inside).options(scheduling_strategy=where, **options).remote()
        found: dict[str, Any] = ray.get(actor.run.remote(model), timeout=300)
        ray.kill(actor)
    found["held"] = devices_held()
    return found


def refusal(config: Any, given: PlacementGroup | None, **environ: str) -> dict[str, Any]:
    """Say what an executor raises that must not start, how soon, and what it has left."""
    actors_before, groups_before = actors(), groups_left()
    config.parallel_config.placement_group = given
    began = time.monotonic()
    with variables(**environ):
        said = answer(lambda: str(executor_class(config)(config)))
    took = time.monotonic() - began
    for _ in range(50):  # Ray removes a group when it gets round to it
        if groups_left() == groups_before:
            break
        time.sleep(0.1)
    return {
        "said": said,
        "took_s": round(took, 1),
        "actors": len(actors()) - len(actors_before),
        "groups": len(groups_left()) - len(groups_before),
        "given_stays": config.parallel_config.placement_group is given,
    }


def mistakes(model: str) -> dict[str, Any]:
    """Every mistake in the list of bundles, and groups that are of no use."""
    config = make_config(model)
    lists = {
        "few": "0",
        "many": "0,2,3",
        "twice": "2,2",
        "words": "0,two",
        "nothing": "0,",
        "beyond": "0,9",
        "negative": "-1,0",
        "no_device": "0,1",
        "all_at_once": "1,9,9",
    }
    found = {}
    with group(BUNDLES) as given:
        ready(given)
        for name, listed in lists.items():
            found[name] = refusal(config, given, **{INDICES_NAME: listed})
    shapes: dict[str, list[dict[str, float]]] = {
        "two_devices": [{"GPU": 2}, {"GPU": 1}],
        "too_few": [{"GPU": 1}, {"CPU": 1}],
    }
    for name, bundles in shapes.items():
        with group(bundles) as given:
            found[name] = refusal(config, ready(given))
    with group(BUNDLES) as given:
        ready(given)
    found["removed"] = refusal(config, given)
    found["no_list_and_no_group"] = refusal(config, None, **{INDICES_NAME: "x"})
    if executor_class(config).__name__ == "RayDistributedExecutor":
        found["host_ip"] = refusal(config, None, **{HOST_IP: "10.9.9.9"})
    return found


def dead_node(model: str) -> dict[str, Any]:
    """A list that names the bundle of a node that has gone."""
    config = make_config(model)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-gpus=1"]
    command += ["--address", os.environ["RAY_ADDRESS"], "--num-cpus=1", "--disable-usage-stats"]
    command += ["--object-store-memory=100000000"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        alive = living()
        wait_for(lambda: living() == alive + 1)
        with group([{"GPU": 1}, {"GPU": 1}], strategy="STRICT_SPREAD") as given:
            ready(given)
            end_node(process)
            wait_for(lambda: living() == alive)
            environ = {INDICES_NAME: "0,1", TIMEOUT_NAME: "2"}
            return refusal(config, given, **environ)
    finally:
        end_node(process)


def end_node(process: subprocess.Popen[bytes]) -> None:
    """End ``ray start --block`` and the node it has started. Idempotent."""
    if process.poll() is None:
        kill_all([*descendants(process.pid), psutil.Process(process.pid)], grace_s=5)
        process.wait()


def living() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


class Hoarder:
    """An actor that has a device."""


def unsatisfied(model: str) -> dict[str, Any]:
    """Groups that Ray cannot provide: others hold the devices, or there are too few."""
    config = make_config(model)
    found = {}
    with group([{"GPU": 1}] * 3, name="the_other_job") as other:
        ready(other)
        hoarder = ray.remote(Hoarder).options(num_gpus=1, num_cpus=0, name="hoarder").remote()
        ray.get(hoarder.__ray_ready__.remote())
        short = {TIMEOUT_NAME: "2"}
        found["made"] = refusal(config, None, **short)
        with group([{"GPU": 1}] * 2) as given:
            found["given"] = refusal(config, given, **short)
        with group([{"GPU": 1}] * 5) as given:  # no variable: the time that is meant for this
            found["never"] = refusal(config, given)
        ray.kill(hoarder)
    found["held"] = {"devices": devices_held()}
    return found


if __name__ == "__main__":
    main(
        {
            "starts": starts,
            "inside": inside,
            "mistakes": mistakes,
            "dead_node": dead_node,
            "unsatisfied": unsatisfied,
        }
    )
