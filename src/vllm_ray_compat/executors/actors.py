"""How the actors of both executors of this package are made: device, place and environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from vllm import envs
from vllm.platforms import current_platform

from vllm_ray_compat.executors.placement import RankPlacement
from vllm_ray_compat.executors.ray_cluster import Group
from vllm_ray_compat.executors.startup import WorkerStartError
from vllm_ray_compat.vllm_api import noset_variables


def device_key() -> str:
    """Return the Ray resource that is a device of the current platform, for example ``GPU``.

    Raises:
        WorkerStartError: the platform names none.
    """
    key = str(current_platform.ray_device_key)
    if not key:
        raise WorkerStartError(
            f"vLLM's platform {current_platform.device_name!r} names no Ray resource for its "
            "device, so Ray cannot place workers on it. On the CPU, set RAYCOMPAT_CPU=1 here "
            "and where Ray is started."
        )
    return key


def actor_options(
    place: RankPlacement,
    group: Group,
    parallel_config: Any,
    *,
    runtime_env: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
    capture_child_tasks: bool = False,
) -> dict[str, Any]:
    """Return the options of the actor of one rank.

    Args:
        place: its bundle.
        group: the placement group of the bundle.
        parallel_config: vLLM's; says whether workers run under nsight.
        runtime_env: what the actor's runtime environment starts from.
        variables: set before the actor's process imports anything. Added are those that keep
            Ray from setting the visible devices.
        capture_child_tasks: whether what the worker starts runs in the group, too.
    """
    key = device_key()
    devices = envs.VLLM_RAY_PER_WORKER_GPUS
    environment: dict[str, Any] = dict(runtime_env or {})
    environment["env_vars"] = {
        **environment.get("env_vars", {}),
        **dict.fromkeys(noset_variables(current_platform), "1"),
        **(variables or {}),
    }
    if parallel_config.ray_workers_use_nsight:
        environment["nsight"] = {
            "t": "cuda,cudnn,cublas",
            "o": "'worker_process_%p'",
            "cuda-graph-trace": "node",
        }
    return {
        "num_cpus": 0,
        "num_gpus": devices if key == "GPU" else 0,
        **({} if key == "GPU" else {"resources": {key: devices}}),
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group.handle,
            placement_group_bundle_index=place.bundle_index,
            placement_group_capture_child_tasks=capture_child_tasks,
        ),
        "runtime_env": environment,
    }
