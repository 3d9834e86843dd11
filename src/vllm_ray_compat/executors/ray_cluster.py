"""Connect to Ray, and get, accept or create the placement group of an engine.

For the executors of this package, and, by repairs, for vLLM's own: one behaviour for all of them.
The group comes from one of three places: the client gives it in the configuration, the caller runs
in one, or it is made here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from vllm_ray_compat.executors import placement_wait
from vllm_ray_compat.executors.placement import (
    PlacementError,
    RankPlacement,
    check_bundles,
    parse_bundle_indices,
    place,
    read_bundles,
    split_groups,
)
from vllm_ray_compat.executors.placement_demand import NODE_PREFIX, check_addresses
from vllm_ray_compat.executors.rank_order import INDICES_NAME, sorted_again
from vllm_ray_compat.names import LOGGER_NAME
from vllm_ray_compat.schedule import Backend

_logger = logging.getLogger(LOGGER_NAME)

#: Whose a group is, for messages.
GIVEN = "that the client gave"
INHERITED = "that this process runs in"
MADE = "that this engine made"

#: Seconds in which a group that is pinned to this node has to be ready: devices were free for it.
_NEAR_S = 5


@dataclass(frozen=True)
class Group:
    """The placement group of an engine, whether it was made for it, and who was told of it."""

    handle: PlacementGroup
    is_ours: bool
    parallel_config: Any

    def remove(self) -> None:
        """Remove the group, if it was made for this engine, and have its configuration forget it.

        Another engine of the same configuration would take it for one that it was given, and wait
        for it.
        """
        if not self.is_ours:
            return
        if getattr(self.parallel_config.placement_group, "id", None) == self.handle.id:
            self.parallel_config.placement_group = None
        if ray.is_initialized():
            ray.util.remove_placement_group(self.handle)


def connect(parallel_config: Any) -> None:
    """Connect to Ray unless this process already is (``RAY_ADDRESS`` says where)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not ray.is_initialized():
        ray.init(runtime_env=parallel_config.ray_runtime_env)


def acquire_group(parallel_config: Any, device_key: str, *, pin_to_driver: bool = False) -> Group:
    """Return the placement group given in the configuration, inherited from the caller, or new.

    It is ready, and large enough. A group that was made and does not become ready is removed.

    Args:
        parallel_config: vLLM's; its ``placement_group`` is set to what is returned.
        device_key: the resource that is a device.
        pin_to_driver: a new group has its first bundle on this node or is not had (the legacy
            executor's ranks meet at an address of the driver's); else where it can be.

    Raises:
        PlacementError: the group cannot hold the engine, or was not ready in time.
        SettingsError: a setting is invalid.
    """
    group = existing_group(parallel_config, device_key)
    if group is None:
        specs = [{device_key: 1.0} for _ in range(parallel_config.world_size)]
        create = ray.util.placement_group
        if pin_to_driver:
            check_driver_has_device(device_key)
            made = create(_pinned_here(specs), strategy="PACK")
        else:
            made = make_near_driver(create, specs, device_key, parallel_config.tensor_parallel_size)
        group = Group(made, True, parallel_config)
        wait_for_made(made)
    parallel_config.placement_group = group.handle
    return group


def existing_group(parallel_config: Any, device_key: str) -> Group | None:
    """Return the group given in the configuration or inherited from the caller, once it is ready.

    Raises:
        PlacementError: it cannot hold the engine, or was not ready in time.
        SettingsError: a setting is invalid.
    """
    handle, origin = parallel_config.placement_group, GIVEN
    if handle is None:
        handle, origin = ray.util.get_current_placement_group(), INHERITED
    if handle is None:
        return None
    # Before the wait: a group of the wrong shape is not worth it.
    specs = placement_wait.specs_of(handle, origin)
    check_bundles(specs, parallel_config.world_size, device_key, devices_per_rank())
    placement_wait.wait_until_ready(handle, origin)
    return Group(handle, False, parallel_config)


def wait_for_made(handle: PlacementGroup) -> None:
    """Wait for a group that was made for this engine, and remove it if it is not ready in time.

    Raises:
        PlacementError: it is not.
        SettingsError: a setting is invalid.
    """
    try:
        placement_wait.wait_until_ready(handle, MADE)
    except BaseException:
        ray.util.remove_placement_group(handle)
        raise


def devices_per_rank() -> float:
    """Return what the actor of a rank asks for (``VLLM_RAY_PER_WORKER_GPUS``)."""
    from vllm import envs

    return float(envs.VLLM_RAY_PER_WORKER_GPUS)


def check_driver_has_device(device_key: str) -> None:
    """Check that this node has a device at all, free or not.

    Raises:
        PlacementError: it has none, and the legacy executor needs one.
    """
    here = _here()
    nodes = placement_wait.nodes()
    total = next((node.total for node in nodes if node.id == here), {})
    if total.get(device_key, 0) < 1:
        with_some = [n.address for n in nodes if n.total.get(device_key, 0) >= 1]
        raise PlacementError(
            f"The legacy executor needs a {device_key} on the driver's node, and Ray knows none on "
            f"this one ({here}). Start the engine on a node that has one "
            f"({', '.join(with_some) or 'there is none'}), or use RayExecutorV2, which needs none "
            "there."
        )


def check_pinned(specs: Sequence[Mapping[str, float]]) -> None:
    """Check, before a group is made, that it is pinned to no other node than this one.

    Raises:
        PlacementError: ``VLLM_HOST_IP`` or what vLLM found in its place is not this node's address.
    """
    host_ip = os.environ.get("VLLM_HOST_IP")
    check_addresses(specs, placement_wait.nodes(), _here(), host_ip)


def _here() -> str:
    here: str = ray.get_runtime_context().get_node_id()
    return here


def make_near_driver(
    create: Callable[..., PlacementGroup],
    specs: Sequence[Mapping[str, float]],
    device_key: str,
    tensor_parallel_size: int,
) -> PlacementGroup:
    """Make a group whose first bundle is on this node, where that costs nothing.

    Its rank 0 then hears the driver through shared memory, and where ranks are does not change
    from start to start. Not where this node has too few free devices for the first tensor-parallel
    group: it would be split.

    Args:
        create: ``ray.util.placement_group``.
        specs: the bundles.
        device_key: the resource that is a device.
        tensor_parallel_size: ranks of a group.
    """
    nodes, here = placement_wait.nodes(), _here()
    free = {node.id: node.free.get(device_key, 0.0) for node in nodes}
    if free.get(here, 0.0) >= tensor_parallel_size and sum(free.values()) >= len(specs):
        near = create(_pinned_here(specs), strategy="PACK")
        if near.wait(_NEAR_S):
            return near
        ray.util.remove_placement_group(near)  # somebody was faster: anywhere, then
    return create(list(specs), strategy="PACK")


def _pinned_here(specs: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    here = f"{NODE_PREFIX}{ray.util.get_node_ip_address()}"
    return [{**specs[0], here: 0.001}, *map(dict, specs[1:])]


def place_ranks(
    handle: PlacementGroup, parallel_config: Any, device_key: str, backend: Backend, by_hand: str
) -> list[RankPlacement]:
    """Give every rank its bundle, by the group's table and ``VLLM_RAY_BUNDLE_INDICES``.

    Warns of each tensor-parallel group that had to be split over nodes.

    Args:
        handle: the group, which is ready.
        parallel_config: vLLM's.
        device_key: the resource that is a device.
        backend: whose ranks; legacy sorts listed bundles again, and needs rank 0 on this node.
        by_hand: what ``VLLM_RAY_BUNDLE_INDICES`` holds; empty when it is unset.

    Raises:
        PlacementError: see :func:`vllm_ray_compat.executors.placement.place`.
    """
    table = placement_group_table(handle)
    nodes = placement_wait.nodes()
    driver_node, is_legacy = _here(), backend is Backend.LEGACY
    placed = place(
        read_bundles(handle.bundle_specs, table["bundles_to_node_id"], device_key),
        driver_node,
        parallel_config.world_size,
        parse_bundle_indices(by_hand) if by_hand else None,
        tensor_parallel_size=parallel_config.tensor_parallel_size,
        alive={node.id for node in nodes},
        devices_per_rank=devices_per_rank(),
        needs_driver=is_legacy,
    )
    if by_hand and is_legacy:
        placed = sorted_again(placed, driver_node, {node.id: node.address for node in nodes})
    for split in split_groups(placed, parallel_config.tensor_parallel_size):
        _logger.warning(
            "%s: each layer's all-reduce goes over the network. %s",
            str(split).capitalize(),
            f"Name the bundles of one node for it in {INDICES_NAME}."
            if by_hand
            else "Reserve its bundles on one node, or lower the tensor parallel size.",
        )
    return placed
