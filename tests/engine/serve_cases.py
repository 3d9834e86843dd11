"""The cases of test_ray_serve.py: real deployments, asked over HTTP.

``python serve_cases.py MODEL PORT CASE...``, in an environment that leads to a Ray cluster with
four devices. Each case prints its answer on a line of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ray
from looking import groups_left, is_alive, without_semaphores
from offline_cases import ENGINE, SAMPLING, prompts
from ray import serve
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.serve import Placement, placement_options
from vllm_ray_compat.shared_memory import mapped_segments

MODEL = sys.argv[1]
PORT = int(sys.argv[2])
#: Little, so that what else a case deploys fits on a machine of four CPUs.
CPUS = {"cpus_per_worker": 0.1, "replica_cpus": 0.5}

ON_RAY = ("v2", "legacy")
ON = {"legacy": {FLAG_NAME: "0"}, "v2": {FLAG_NAME: "1"}, "mp": {}}


class Engine:
    """A replica with one engine."""

    def __init__(self, model: str, **arguments: Any) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                worker_extension_cls="serve_cases_worker.Where",
                enable_log_requests=False,
                **arguments,
            )
        )

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answer ``{"prompt": …, "sampling": {…}}`` that came over HTTP."""
        body = await request.json()
        name = request.headers["x-request-id"]
        return {"tokens": await self.answer(body["prompt"], body["sampling"], name)}

    async def answer(self, prompt: str, sampling: dict[str, Any], name: str) -> list[int]:
        from vllm import SamplingParams

        last = None
        async for output in self.llm.generate(prompt, SamplingParams(**sampling), name):
            last = output
        assert last is not None
        return list(last.outputs[0].token_ids)

    async def where(self) -> dict[str, Any]:
        """Say where the workers are, and which processes this engine consists of here."""
        import psutil

        workers = await self.llm.collective_rpc("where")
        return {
            "workers": sorted(workers, key=lambda worker: worker["rank"]),
            "processes": [os.getpid(), *(p.pid for p in psutil.Process().children(recursive=True))],
        }

    def stop(self) -> None:
        self.llm.shutdown()

    def __del__(self) -> None:
        if hasattr(self, "llm"):
            self.stop()


def arguments(backend: str, tp: int, pp: int) -> dict[str, Any]:
    return {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "distributed_executor_backend": "mp" if backend == "mp" else "ray",
        **ENGINE,
    }


def app(backend: str, tp: int, pp: int, options: dict[str, Any], **deployment: Any) -> Any:
    """Return an application of :class:`Engine`; *options* is what places it."""
    actor = dict(options.pop("ray_actor_options", {}))
    runtime_env = {"env_vars": ON[backend]} if ON[backend] else {}
    placed = serve.deployment(Engine).options(
        **options, ray_actor_options={**actor, "runtime_env": runtime_env}, **deployment
    )
    return placed.bind(MODEL, **arguments(backend, tp, pp))


def post(route: str, body: dict[str, Any], number: int = 0) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/{route}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-Request-Id": f"request-{number}-{time.time()}"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def ask(route: str) -> list[list[int]]:
    """Return the tokens of each prompt, asked over HTTP."""
    bodies = [{"prompt": prompt, "sampling": SAMPLING} for prompt in prompts()]
    return [post(route, body, n)["tokens"] for n, body in enumerate(bodies)]


def actors() -> dict[int, str]:
    """Return pid -> class of the actors that live, as the cluster knows them."""
    table = ray._private.state.actors().values()
    return {a["Pid"]: a["ActorClassName"] for a in table if a["State"] == "ALIVE"}


def engines(handle: Any, number: int) -> list[dict[str, Any]]:
    """Return where each of *number* engines of a deployment is; asks until all have answered."""
    found: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + 60
    while len(found) < number and time.monotonic() < deadline:
        where = handle.where.remote().result()
        found[where["processes"][0]] = where
    kinds = actors()
    return [
        {
            "replica": where["processes"][0],
            "ranks": [w["rank"] for w in where["workers"]],
            "pids": [*{*where["processes"], *(w["pid"] for w in where["workers"])}],
            "groups": sorted({str(w["group"]) for w in where["workers"]}),
            "devices": sorted(d for w in where["workers"] for d in w.get("devices", [])),
            "kinds": sorted({kinds.get(w["pid"], "process") for w in where["workers"]}),
        }
        for where in found.values()
    ]


def wait_for(what: Callable[[], Any], expected: Any, limit_s: float) -> Any:
    """Return what *what* returns, when it is *expected* or the time is over."""
    deadline = time.monotonic() + limit_s
    while (found := what()) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def held() -> dict[str, int]:
    """Return what engines hold of the cluster: replicas, workers, groups, devices."""
    kinds = list(actors().values())
    return {
        "replicas": sum(kind.startswith("ServeReplica:") for kind in kinds),
        "workers": sum(kind.startswith("RayWorker") for kind in kinds),
        "groups": len(groups_left()),
        "devices": int(ray.cluster_resources()["GPU"] - ray.available_resources().get("GPU", 0.0)),
    }


NOTHING = {"replicas": 0, "workers": 0, "groups": 0, "devices": 0}


def memory_of(pids: Iterable[int]) -> set[str]:
    """Return the files in /dev/shm that processes use; ask while they live."""
    return {path for pid in pids for path in without_semaphores(mapped_segments(pid))}


def free(paths: set[str]) -> int:
    """Return how many of *paths* were left behind, and remove them."""
    left = wait_for(lambda: [path for path in paths if Path(path).exists()], [], 10)
    for path in left:
        Path(path).unlink()
    return len(left)


def message_of(name: str) -> str:
    """Return what Serve says of the deployments of an application: ``serve.run`` does not."""
    deployments = serve.status().applications[name].deployments.values()
    return " ".join(deployment.message for deployment in deployments)


@contextlib.contextmanager
def deployed(name: str, application: Any, found: dict[str, Any]) -> Iterator[Any]:
    """Deploy; delete and note what is left: in the cluster, and of the processes ``found["pids"]``."""
    began = time.monotonic()
    try:
        try:
            handle = serve.run(application, name=name, route_prefix=f"/{name}")
        except RuntimeError:
            found["message"] = message_of(name)
            raise
        finally:
            found["start_s"] = round(time.monotonic() - began, 1)
        yield handle
    finally:
        pids = found.get("pids", [])
        shared = {*found.pop("shared", []), *memory_of(pids)}
        serve.delete(name)
        found["left"] = wait_for(held, NOTHING, 30)
        found["processes_left"] = [pid for pid in pids if is_alive(pid)]
        found["shared_left"] = free(shared)


def served(application: Any) -> dict[str, Any]:
    """Deploy one engine, ask it over HTTP, see where it is and delete it."""
    found: dict[str, Any] = {}
    with deployed("engine", application, found) as handle:
        found["tokens"] = ask("engine")
        (engine,) = engines(handle, 1)
        found.update(engine)
        found["held"] = held()
    return found


def in_a_group(backend: str, tp: int, pp: int) -> dict[str, Any]:
    """Shape (a): the replica has no device and a placement group, its workers are in the group."""
    return served(app(backend, tp, pp, placement_options(tp, pp, **CPUS)))


def processes_in_the_replica(tp: int, pp: int) -> dict[str, Any]:
    """Shape (d): the replica holds the devices, its workers are processes of ``mp``."""
    options = {"ray_actor_options": {"num_cpus": 0.5, "num_gpus": tp * pp}}
    return served(app("mp", tp, pp, options))


def refused(backend: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of a replica with *options*, which is not to start."""
    found: dict[str, Any] = {"message": ""}
    application = app(backend, 2, 1, options, max_constructor_retry_count=1)
    with contextlib.suppress(RuntimeError), deployed("refused", application, found):
        pass
    return found


def holds_the_devices(backend: str) -> dict[str, Any]:
    """Shape (c): the replica holds devices, no group; too few are left for the workers."""
    options = {"ray_actor_options": {"num_cpus": 0.5, "num_gpus": 3}}
    return refused(backend, options)


def holds_a_bundle(backend: str) -> dict[str, Any]:
    """As shape (a), but the replica has the device of the first worker's bundle."""
    options = {
        "placement_group_bundles": [{"CPU": 0.5, "GPU": 1}, {"GPU": 1}],
        "ray_actor_options": {"num_cpus": 0.5, "num_gpus": 1},
    }
    return refused(backend, options)


def two_replicas(backend: str) -> dict[str, Any]:
    """Two engines on one node; then Serve's autoscaler takes one away."""
    found: dict[str, Any] = {}

    def deployment(**scaling: Any) -> Any:
        application = app(backend, 2, 1, placement_options(2, **CPUS), **scaling)
        # With a version of ours Serve keeps the replicas when only the scaling changes, as it does
        # for applications that are deployed from a file.
        application._bound_deployment._version = "1"
        return application

    with deployed("engine", deployment(num_replicas=2), found) as handle:
        found["tokens"] = ask("engine")
        both = engines(handle, 2)
        found["held_by_two"] = held()
        found["groups"] = [engine["groups"] for engine in both]
        found["devices"] = sorted(device for engine in both for device in engine["devices"])
        found["pids"] = [pid for engine in both for pid in engine["pids"]]
        found["shared"] = memory_of(found["pids"])
        scaling = {"min_replicas": 1, "max_replicas": 2, "downscale_delay_s": 1}
        began = time.monotonic()
        application = deployment(autoscaling_config=scaling)
        serve.run(application, name="engine", route_prefix="/engine")
        one = {"replicas": 1, "workers": 2, "groups": 1, "devices": 2}
        found["held_by_one"] = wait_for(held, one, 120)
        found["scaled_down_s"] = round(time.monotonic() - began, 1)
        (kept,) = engines(handle, 1)
        found["kept_is_one_of_them"] = kept["pids"] in [engine["pids"] for engine in both]
        gone = [pid for pid in found["pids"] if pid not in kept["pids"]]
        found["still_there"] = [pid for pid in gone if is_alive(pid)]
        found["tokens_after"] = ask("engine")
    return found


def killed_replica(backend: str) -> dict[str, Any]:
    """The replica's process is killed: Serve starts another, and nothing of the first stays."""
    found: dict[str, Any] = {}
    with deployed("engine", app(backend, 2, 1, placement_options(2, **CPUS)), found) as handle:
        (first,) = engines(handle, 1)
        found["shared"] = memory_of(first["pids"])
        os.kill(first["replica"], signal.SIGKILL)
        wait_for(lambda: [pid for pid in first["pids"] if is_alive(pid)], [], 60)
        found["still_there"] = [pid for pid in first["pids"] if is_alive(pid)]
        one = {"replicas": 1, "workers": 2, "groups": 1, "devices": 2}
        found["held_by_the_next"] = wait_for(held, one, 120)
        (second,) = engines(handle, 1)
        found["is_another"] = second["replica"] != first["replica"]
        found["pids"] = second["pids"]
        found["tokens"] = ask("engine")
    return found


def two_engines_in_one_group(backend: str) -> dict[str, Any]:
    """Two actors in one placement group; ``VLLM_RAY_BUNDLE_INDICES`` gives each its bundles."""
    bundles = [{"CPU": 1}, *[{"GPU": 1} for _ in range(4)]]
    group = ray.util.placement_group(bundles, strategy="PACK")
    found: dict[str, Any] = {"engines": []}
    actors_of_engines: list[Any] = []
    shared: set[str] = set()
    try:
        for indices in ("1,2", "3,4"):
            actor = (
                ray.remote(Engine)
                .options(
                    num_cpus=0.5,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group),
                    runtime_env={"env_vars": {**ON[backend], "VLLM_RAY_BUNDLE_INDICES": indices}},
                )
                .remote(MODEL, **arguments(backend, 2, 1))
            )
            actors_of_engines.append(actor)
        for actor in actors_of_engines:
            where = ray.get(actor.where.remote())
            shared |= memory_of([*where["processes"], *(w["pid"] for w in where["workers"])])
            found["engines"].append(
                {
                    "devices": sorted(d for w in where["workers"] for d in w["devices"]),
                    "groups": sorted({w["group"] for w in where["workers"]}),
                    "tokens": [
                        ray.get(actor.answer.remote(prompt, SAMPLING, prompt))
                        for prompt in prompts()
                    ],
                }
            )
        found["held"] = held()
    finally:
        for actor in actors_of_engines:
            ray.get(actor.stop.remote())
            ray.kill(actor)
        ray.util.remove_placement_group(group)
    found["group"] = group.id.hex()
    found["left"] = wait_for(held, NOTHING, 30)
    found["shared_left"] = free(shared)
    return found


def serve_llm(backend: str, tp: int, pp: int) -> dict[str, Any]:
    """Shape (b): Serve LLM's own application, asked as OpenAI's clients ask."""
    from ray.serve.llm import LLMConfig, build_openai_app

    config = LLMConfig(
        model_loading_config={"model_id": "tiny", "model_source": MODEL},
        engine_kwargs={
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "distributed_executor_backend": "ray",
            **ENGINE,
        },
        deployment_config={
            "num_replicas": 1,
            "ray_actor_options": {"num_cpus": 0.5},
        },
        placement_group_config=Placement(tp, pp, cpus_per_worker=0.1).for_serve_llm(),
        runtime_env={"env_vars": ON[backend]},
    )
    application = build_openai_app(
        {
            "llm_configs": [config],
            "ingress_deployment_config": {
                "num_replicas": 1,
                "ray_actor_options": {"num_cpus": 0.1},
            },
        }
    )
    found: dict[str, Any] = {"tokens": []}
    with deployed("llm", application, found):
        for number, prompt in enumerate(prompts()):
            body = {"model": "tiny", "prompt": prompt, "return_token_ids": True, **SAMPLING}
            (choice,) = post("llm/v1/completions", body, number)["choices"]
            found["tokens"].append(choice["token_ids"])
        found["held"] = held()
        kinds = actors()
        found["kinds"] = sorted(kind for kind in kinds.values() if kind.startswith("RayWorker"))
        found["pids"] = [pid for pid, kind in kinds.items() if kind.startswith("RayWorker")]
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{
        f"group_{backend}_tp{tp}pp{pp}": partial(in_a_group, backend, tp, pp)
        for backend in ON_RAY
        for tp, pp in ((2, 1), (1, 2))
    },
    **{f"holds_{backend}": partial(holds_the_devices, backend) for backend in ON_RAY},
    **{f"bundle_{backend}": partial(holds_a_bundle, backend) for backend in ON_RAY},
    "mp_tp2pp1": partial(processes_in_the_replica, 2, 1),
    "mp_tp1pp2": partial(processes_in_the_replica, 1, 2),
    **{f"replicas_{backend}": partial(two_replicas, backend) for backend in ON_RAY},
    **{f"killed_{backend}": partial(killed_replica, backend) for backend in ON_RAY},
    **{f"indices_{backend}": partial(two_engines_in_one_group, backend) for backend in ON_RAY},
    **{
        f"llm_{backend}_tp{tp}pp{pp}": partial(serve_llm, backend, tp, pp)
        for backend in ON_RAY
        for tp, pp in ((2, 1), (1, 2))
    },
}


def main() -> None:
    ray.init(namespace="cases", log_to_driver=True)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT, "location": "HeadOnly"})
    try:
        for name in sys.argv[3:]:
            began = time.monotonic()
            try:
                found = CASES[name]()
            except Exception:  # its test fails; the others still have their answers
                traceback.print_exc()
                continue
            found["case_s"] = round(time.monotonic() - began, 1)
            print("ANSWER " + json.dumps({"case": name, **found}), flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
