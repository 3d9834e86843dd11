"""An engine inside a Ray actor that holds devices itself, which its workers then lack.

vLLM's Ray executors give each worker a device of the placement group that the engine is in, or
reserve new ones where it is in none. A device that the actor around the engine holds is neither:
no worker can use it. Where too few others are left the workers wait for half an hour, or for ever,
and nothing says why. It can be seen only in the actor's own process: EngineCore is a process of its
own, and a driver of its own to Ray.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.executors.inside_ray import ray_of_this_worker
from vllm_ray_compat.vllm_api import ray_device_key


class DevicesHeldByActorError(UnusableEnvironmentError):
    """The engine's workers would wait for devices that its own actor holds (exit code 3)."""


@dataclass(frozen=True)
class Actor:
    """The Ray actor this process runs, and the devices around it.

    ``free`` and ``total`` count bundles with a device where the actor is in a placement group, and
    devices of the cluster where it is in none.
    """

    device: str
    held: float
    free: float
    total: float
    in_a_group: bool


def look(parallel_config: Any) -> Actor | None:
    """Return the actor (or task) this engine is in, if it holds devices."""
    ray = ray_of_this_worker()
    device = ray_device_key()
    if ray is None or not device:
        return None
    held = float(ray.get_runtime_context().get_assigned_resources().get(device, 0))
    if held <= 0:
        return None
    given = parallel_config.placement_group
    group = ray.util.get_current_placement_group()
    if given is not None and (group is None or group.id != given.id):
        return None  # the workers have a group that the actor's devices are not of
    if group is None:
        free = float(ray.available_resources().get(device, 0))
        return Actor(device, held, free, float(ray.cluster_resources().get(device, 0)), False)
    total = sum(1 for bundle in group.bundle_specs if bundle.get(device, 0) > 0)
    # Less than one is a way to see the devices, as Serve LLM's own task does, and takes no bundle.
    return Actor(device, held, total - int(held), total, True)


def check(parallel_config: Any) -> str | None:
    """Return what to warn of: None when this engine is not in an actor that holds devices.

    Raises:
        DevicesHeldByActorError: fewer devices are free than the engine has workers.
    """
    actor = look(parallel_config)
    if actor is None:
        return None
    workers = int(parallel_config.world_size)
    device = actor.device
    instead = _instead(parallel_config, device)
    holds = f"This engine runs in a Ray actor that holds {actor.held:g} {device} itself"
    if actor.in_a_group:
        if actor.free >= min(workers, actor.total):
            return None  # too small a group is vLLM's own error
        raise DevicesHeldByActorError(
            f"{holds}. Its placement group has {actor.total:g} bundles with {device}, and its "
            f"{workers} workers need one each: those of the bundles that the actor holds would "
            f"wait for ever. {instead}"
        )
    where = (
        f"{holds} and is in no placement group. Its workers cannot use those: the Ray executor "
        f"reserves {workers} {device} more, and of the cluster's {actor.total:g} are free: "
        f"{actor.free:g}."
    )
    if actor.free < workers:
        raise DevicesHeldByActorError(f"{where} It would wait for ever. {instead}")
    return f"{where} It takes those, and the actor's own stay unused. {instead}"


def _instead(parallel_config: Any, device: str) -> str:
    workers = int(parallel_config.world_size)
    arguments = f"tensor_parallel_size={parallel_config.tensor_parallel_size}"
    if parallel_config.pipeline_parallel_size > 1:
        arguments += f", pipeline_parallel_size={parallel_config.pipeline_parallel_size}"
    options = f"{{'num_gpus': {workers}}}"
    if device != "GPU":
        arguments += f", device={device!r}"
        options = f"{{'resources': {{{device!r}: {workers}}}}}"
    return (
        "Let the workers hold the devices, and not the actor: "
        f"@serve.deployment(**vllm_ray_compat.serve.placement_options({arguments})), or outside "
        f"Ray Serve an actor without devices in a placement group that has a bundle with 1 "
        f"{device} for each worker. Or leave the devices to the actor, in no group, and keep the "
        f"engine on its node: ray_actor_options={options} with distributed_executor_backend='mp'."
    )
