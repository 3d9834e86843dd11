"""What Ray Serve, Serve LLM and Ray Data take for an engine with several workers.

vLLM's Ray executors put each worker into a bundle of the placement group that the engine's own
actor runs in. All three ask for that group in a form of their own; here the three come from one
:class:`Placement`. Imports nothing of vLLM, Ray or torch, so that a file of deployments can use it
anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_ray_compat.errors import UsageError, suggestion

#: What Ray accepts as ``strategy`` of a placement group.
STRATEGIES = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")

#: Resources that every node has, and that are no device.
_NOT_A_DEVICE = ("CPU", "memory", "object_store_memory")

#: Options of an actor that the bundles decide.
_DECIDED = {
    "num_cpus": "give replica_cpus instead",
    "num_gpus": "the replica must hold no device: its workers hold them",
    "accelerator_type": "the workers' bundles ask for it: worker_resources="
    "{'accelerator_type:NAME': 0.001}",
}


class PlacementOptionsError(UsageError):
    """One or more arguments cannot be; the text names every one (exit code 2)."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(f"These placement options cannot be: {'; '.join(faults)}.")
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Placement:
    """One engine: its workers, each with a device in a bundle of its own, and its actor.

    Attributes:
        tensor_parallel_size: vLLM's argument of this name.
        pipeline_parallel_size: vLLM's argument of this name.
        cpus_per_worker: CPUs reserved beside each device. vLLM's workers ask Ray for none; they
            use one each all the same.
        replica_cpus: CPUs of the actor that hosts the engine.
        strategy: how Ray lays the bundles out; one of :data:`STRATEGIES`.
        device: the resource that is a device, ``GPU`` or for example ``NPU``.
        worker_resources: further resources of each worker's bundle, for example
            ``{"accelerator_type:H100": 0.001}``.

    Raises:
        PlacementOptionsError: an argument cannot be.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    cpus_per_worker: float = 1
    replica_cpus: float = 1
    strategy: str = "PACK"
    device: str = "GPU"
    worker_resources: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if faults := self._faults():
            raise PlacementOptionsError(faults)

    def _faults(self) -> list[str]:
        faults = [
            f"{name}={size!r} (a whole number, 1 or more)"
            for name in ("tensor_parallel_size", "pipeline_parallel_size")
            if not _is_count(size := getattr(self, name))
        ]
        if not _is_amount(self.cpus_per_worker):
            faults.append(f"cpus_per_worker={self.cpus_per_worker!r} (a number, 0 or more)")
        if not _is_amount(self.replica_cpus) or self.replica_cpus <= 0:
            # Ray refuses a bundle that is empty, and an actor outside any bundle is not in the
            # group: vLLM would not see it.
            faults.append(f"replica_cpus={self.replica_cpus!r} (a number above 0)")
        if self.strategy not in STRATEGIES:
            close = suggestion(str(self.strategy), STRATEGIES)
            faults.append(f"strategy={self.strategy!r} (one of {', '.join(STRATEGIES)}){close}")
        if not isinstance(self.device, str) or not self.device or self.device in _NOT_A_DEVICE:
            faults.append(f"device={self.device!r} (the resource that is a device, such as GPU)")
        return faults + self._faulty_resources()

    def _faulty_resources(self) -> list[str]:
        if not isinstance(self.worker_resources, Mapping):
            return [f"worker_resources={self.worker_resources!r} (a mapping of name to amount)"]
        faults = []
        for name, amount in self.worker_resources.items():
            what = f"worker_resources[{name!r}]"
            if name == "CPU":
                faults.append(f"{what} (give cpus_per_worker instead)")
            elif name in ("GPU", self.device):
                faults.append(f"{what} (each worker has one device; vLLM accepts no more)")
            elif not isinstance(name, str) or not _is_amount(amount) or amount <= 0:
                faults.append(f"{what}={amount!r} (a number above 0)")
        return faults

    @property
    def workers(self) -> int:
        """How many workers the engine has."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def worker_bundle(self) -> dict[str, float]:
        """Return the bundle of one worker: one device, and what goes with it."""
        cpus = {"CPU": self.cpus_per_worker} if self.cpus_per_worker else {}
        return {**cpus, self.device: 1, **self.worker_resources}

    def for_serve(self, ray_actor_options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what ``@serve.deployment(**options)`` and ``.options(**options)`` take.

        The replica has bundle 0 to itself; it holds no device, because vLLM counts the devices of
        bundles and its workers could not have that one.

        Args:
            ray_actor_options: more of them, for example ``runtime_env``; what they ask of Ray is
                added to bundle 0, as Serve demands.

        Raises:
            PlacementOptionsError: they ask for CPUs or devices.
        """
        if faults := _faulty_actor_options(ray_actor_options, self.device):
            raise PlacementOptionsError(faults)
        given = dict(ray_actor_options or {})
        resources = given.get("resources") or {}
        memory = {"memory": given["memory"]} if given.get("memory") else {}
        replica = {"CPU": self.replica_cpus, **memory, **resources}
        return {
            "placement_group_bundles": [replica, *self._worker_bundles()],
            "placement_group_strategy": self.strategy,
            "ray_actor_options": {"num_cpus": self.replica_cpus, "num_gpus": 0, **given},
        }

    def for_serve_llm(self) -> dict[str, Any]:
        """Return what ``LLMConfig(placement_group_config=...)`` takes.

        Serve LLM itself adds the CPUs of the replica to the first bundle (those of
        ``deployment_config["ray_actor_options"]``, one by default).
        """
        return {"bundles": self._worker_bundles(), "strategy": self.strategy}

    def for_data(self) -> dict[str, Any]:
        """Return what ``vLLMEngineProcessorConfig(placement_group_config=...)`` takes.

        Ray Data runs the engine's actor in the group and adds nothing for it. Where the workers'
        bundles have no CPU to spare it would wait for ever; ours have a bundle for it.
        """
        return {
            "bundles": [{"CPU": self.replica_cpus}, *self._worker_bundles()],
            "strategy": self.strategy,
        }

    def _worker_bundles(self) -> list[dict[str, float]]:
        return [self.worker_bundle() for _ in range(self.workers)]


def placement_options(
    tensor_parallel_size: int,
    pipeline_parallel_size: int = 1,
    *,
    cpus_per_worker: float = 1,
    replica_cpus: float = 1,
    strategy: str = "PACK",
    device: str = "GPU",
    worker_resources: Mapping[str, float] | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the options of a Serve deployment whose replica hosts one vLLM engine.

    For ``@serve.deployment(**placement_options(2))`` and ``.options(**placement_options(2))``.
    The arguments are those of :class:`Placement` and :meth:`Placement.for_serve`.

    Raises:
        PlacementOptionsError: one or more arguments cannot be.
    """
    faults: list[str] = []
    try:
        placement = Placement(
            tensor_parallel_size,
            pipeline_parallel_size,
            cpus_per_worker,
            replica_cpus,
            strategy,
            device,
            {} if worker_resources is None else worker_resources,
        )
    except PlacementOptionsError as error:
        faults += error.faults
    faults += _faulty_actor_options(ray_actor_options, device)
    if faults:
        raise PlacementOptionsError(faults)
    return placement.for_serve(ray_actor_options)


def _faulty_actor_options(options: Mapping[str, Any] | None, device: Any) -> list[str]:
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        return [f"ray_actor_options={given!r} (a mapping of option to value)"]
    faults = [f"ray_actor_options[{k!r}] ({why})" for k, why in _DECIDED.items() if k in given]
    if device in (given.get("resources") or {}):
        faults.append(f"ray_actor_options['resources'][{device!r}] ({_DECIDED['num_gpus']})")
    return faults


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_amount(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
