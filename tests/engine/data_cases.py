"""The cases of test_ray_data.py: a dataset through ``ray.data.llm``.

``python data_cases.py MODEL _ CASE``, in an environment that leads to a Ray cluster with devices.
One case a process, because Ray Data keeps its placement groups until the driver ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from looking import devices_held, groups_left, without_semaphores
from offline_cases import ENGINE, SAMPLING, prompts
from ray.util.placement_group import placement_group_table

from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.serve import Placement
from vllm_ray_compat.shared_memory import mapped_segments

MODEL = sys.argv[1]
DETECTOR = "HighMemoryIssueDetector"
ON = {"legacy": {FLAG_NAME: "0"}, "v2": {FLAG_NAME: "1"}}


def run(backend: str, tp: int, pp: int) -> dict[str, Any]:
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    placement = Placement(tp, pp, cpus_per_worker=0)
    config = vLLMEngineProcessorConfig(
        model_source=MODEL,
        engine_kwargs={
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "distributed_executor_backend": "ray",
            **ENGINE,
        },
        placement_group_config=placement.for_data(),
        runtime_env={"env_vars": ON[backend]},
        concurrency=1,
        batch_size=len(prompts()),
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {"prompt": row["text"], "sampling_params": dict(SAMPLING)},
        postprocess=lambda row: {"prompt": row["prompt"], "tokens": row["generated_tokens"]},
    )
    # This one asks for the options of the engine's actor again and again, and Ray Data makes a
    # placement group each time it is asked (ray#64012); docs/serve.md.
    detection = ray.data.DataContext.get_current().issue_detectors_config
    detection.detectors = [d for d in detection.detectors if d.__name__ != DETECTOR]
    before = {*placement_group_table(), *ray._private.state.actors()}
    began = time.monotonic()
    with watched() as shared:
        rows = processor(ray.data.from_items([{"text": text} for text in prompts()])).take_all()
    took = time.monotonic() - began
    answers = {row["prompt"]: [int(token) for token in row["tokens"]] for row in rows}
    groups = [group for id, group in placement_group_table().items() if id not in before]
    return {
        "run_s": round(took, 1),
        "tokens": [answers[prompt] for prompt in prompts()],
        "workers": sorted(
            {
                actor["ActorClassName"]
                for id, actor in ray._private.state.actors().items()
                if id not in before and actor["ActorClassName"].startswith("RayWorker")
            }
        ),
        "groups": [[group["bundles"][i] for i in sorted(group["bundles"])] for group in groups],
        "asked": placement.for_data()["bundles"],
        "engines_left": engines_left(),
        "shared_left": remove(shared),
    }


def workers_alive() -> list[dict[str, Any]]:
    table = ray._private.state.actors().values()
    return [
        actor
        for actor in table
        if actor["State"] == "ALIVE" and actor["ActorClassName"].startswith("RayWorker")
    ]


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """Yield the files in /dev/shm that workers use meanwhile; complete afterwards."""
    found: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.3):
            for actor in workers_alive():
                found.update(without_semaphores(mapped_segments(actor["Pid"])))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def remove(paths: set[str]) -> int:
    """Return how many of *paths* were left behind, and remove them."""
    left = [Path(path) for path in paths if Path(path).exists()]
    for path in left:
        path.unlink()
    return len(left)


def engines_left() -> int:
    """Return how many workers live; waits a moment for them to end."""
    for _ in range(60):
        if not workers_alive():
            break
        time.sleep(0.5)
    return len(workers_alive())


CASES = {
    f"data_{backend}_tp{tp}pp{pp}": (backend, tp, pp)
    for backend in ON
    for tp, pp in ((2, 1), (1, 2))
}


def left() -> dict[str, Any]:
    """Return what the cluster holds, as another driver sees it; waits a moment for nothing."""
    for _ in range(60):
        found = {"groups": groups_left(), "devices": devices_held(0)}
        if not any(found.values()):
            break
        time.sleep(0.5)
    return found


def main() -> None:
    (name,) = sys.argv[3:]
    ray.init()
    try:
        found = run(*CASES[name])
    finally:
        ray.shutdown()
    ray.init()
    found["left"] = left()
    ray.shutdown()
    print("ANSWER " + json.dumps({"case": name, **found}), flush=True)


if __name__ == "__main__":
    main()
