"""A placement group that cannot be had is waited for for half an hour, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vllm_ray_compat.executors.repairs import placing
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, original, replaced
from vllm_ray_compat.schedule import Backend


class _InTime(Mixin):
    """Groups are checked before they are waited for, and not waited for for ever."""

    def _init_executor(self) -> None:
        backend = placing.backend_of(self)
        module = placing.module_of(backend)
        initialize = original(module, "initialize_ray_cluster")

        def initialize_ray_cluster(parallel_config: Any, *args: Any, **kwargs: Any) -> None:
            with _checked(parallel_config, backend):
                initialize(parallel_config, *args, **kwargs)

        with replaced(module, initialize_ray_cluster=initialize_ray_cluster):
            super()._init_executor()


@contextlib.contextmanager
def _checked(parallel_config: Any, backend: Backend) -> Iterator[None]:
    """Put the checks where vLLM asks Ray for the group, which is when it has connected to it."""
    from vllm.v1.executor import ray_utils

    from vllm_ray_compat.executors import placement_wait, ray_cluster
    from vllm_ray_compat.executors.actors import device_key

    ray = original(ray_utils, "ray")
    given = parallel_config.placement_group

    def get_current_placement_group() -> Any:
        parallel_config.placement_group = given
        group = ray_cluster.existing_group(parallel_config, device_key())
        return None if group is None else group.handle

    def placement_group(bundles: Any, *args: Any, **kwargs: Any) -> Any:
        if backend is Backend.LEGACY:  # which pins the first one to the driver's node by itself
            ray_cluster.check_pinned(bundles)
            return ray.util.placement_group(bundles, *args, **kwargs)
        return ray_cluster.make_near_driver(
            ray.util.placement_group, bundles, device_key(), parallel_config.tensor_parallel_size
        )

    def available_resources_per_node() -> dict[str, Any]:
        # vLLM refuses at once when the driver's node has no device that is free. There has to be
        # one; if others hold it, that is waited for like every other device.
        ray_cluster.check_driver_has_device(device_key())
        return {node.id: node.total for node in placement_wait.nodes()}

    own: dict[str, Any] = {"_wait_until_pg_ready": ray_cluster.wait_for_made}
    if backend is Backend.LEGACY:
        own["available_resources_per_node"] = available_resources_per_node
    util = StandIn(
        ray.util,
        get_current_placement_group=get_current_placement_group,
        placement_group=placement_group,
    )
    # vLLM asks for the current group where none is given, and takes a given one unseen.
    parallel_config.placement_group = None
    try:
        with replaced(ray_utils, ray=StandIn(ray, util=util), **own):
            yield
    except BaseException:
        parallel_config.placement_group = given
        raise


REPAIR = Repair(
    name="placement-group",
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.15.0",
    fixed_in=None,
    reports=(),
    symptom=(
        "A placement group that Ray cannot provide is waited for for 1800 s, one of the client's "
        "that is not ready fails with a KeyError or later, and no error says who holds the devices."
    ),
    effect=(
        "Within RAYCOMPAT_PLACEMENT_TIMEOUT_S the group is ready, or the start fails and says what "
        "each node has and who holds it. What can never be, such as a wrong VLLM_HOST_IP or too "
        "few bundles, is said at once. A group made for V2 begins on the driver's node where that "
        "needs no waiting."
    ),
    executor=_InTime,
)
