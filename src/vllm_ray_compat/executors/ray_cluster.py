"""Connect to Ray, and get, accept or create the placement group of an engine.

Imported only where an executor of this package runs; vLLM ≤ 0.19's own helper demands a device on
the driver's node, which RayExecutorV2 does not need.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from vllm_ray_compat.executors.placement import (
    PlacementError,
    RankPlacement,
    parse_bundle_indices,
    place,
    read_bundles,
    split_groups,
)
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)

#: As long as vLLM itself waits for a placement group (seconds).
_GROUP_TIMEOUT_S = 1800.0


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

    Args:
        parallel_config: vLLM's; its ``placement_group`` is set to what is returned.
        device_key: the resource that is a device.
        pin_to_driver: a new group puts its first bundle on this node (the legacy executor's
            first stage answers to the driver through shared memory).

    Raises:
        PlacementError: a new group did not become ready in half an hour.
    """
    given = parallel_config.placement_group
    inherited = None if given is not None else ray.util.get_current_placement_group()
    if given is None and inherited is None:
        made = _create(parallel_config.world_size, device_key, pin_to_driver)
        group = Group(made, True, parallel_config)
    else:
        group = Group(given if given is not None else inherited, False, parallel_config)
    try:
        _wait_until_ready(group.handle)
    except BaseException:
        group.remove()
        raise
    parallel_config.placement_group = group.handle
    return group


def _create(world_size: int, device_key: str, pin_to_driver: bool) -> PlacementGroup:
    specs: list[dict[str, float]] = [{device_key: 1.0} for _ in range(world_size)]
    if pin_to_driver:
        specs[0][f"node:{ray.util.get_node_ip_address()}"] = 0.001
    return ray.util.placement_group(specs, strategy="PACK")


def _wait_until_ready(handle: PlacementGroup) -> None:
    began = time.monotonic()
    pause = 10.0
    while not handle.wait(pause):
        waited = time.monotonic() - began
        if waited > _GROUP_TIMEOUT_S:
            raise PlacementError(
                f"Ray could not provide the placement group {handle.bundle_specs} within "
                f"{_GROUP_TIMEOUT_S:.0f} s. The cluster has {ray.cluster_resources()}, free are "
                f"{ray.available_resources()}. Free devices, or lower the parallel sizes."
            )
        _logger.warning(
            "Waiting for the placement group %s for %d s; free in the cluster: %s",
            handle.bundle_specs,
            waited,
            ray.available_resources(),
        )
        pause = min(pause * 2, 120.0)


def place_ranks(group: Group, device_key: str, driver_node: str) -> list[RankPlacement]:
    """Give every rank its bundle, by the group's table and ``VLLM_RAY_BUNDLE_INDICES``.

    Warns of each tensor-parallel group that had to be split over nodes.

    Raises:
        PlacementError: see :func:`vllm_ray_compat.executors.placement.place`.
    """
    config = group.parallel_config
    table = placement_group_table(group.handle)
    bundles = read_bundles(group.handle.bundle_specs, table["bundles_to_node_id"], device_key)
    by_hand = os.environ.get("VLLM_RAY_BUNDLE_INDICES", "")
    placed = place(
        bundles,
        driver_node,
        config.world_size,
        parse_bundle_indices(by_hand) if by_hand else None,
        tensor_parallel_size=config.tensor_parallel_size,
        alive={node["NodeID"] for node in ray.nodes() if node["Alive"]},
    )
    for split in split_groups(placed, config.tensor_parallel_size):
        _logger.warning(
            "%s: each layer's all-reduce goes over the network. %s",
            str(split).capitalize(),
            "Name the bundles of one node for it in VLLM_RAY_BUNDLE_INDICES."
            if by_hand
            else "Reserve its bundles on one node, or lower the tensor parallel size.",
        )
    return placed
