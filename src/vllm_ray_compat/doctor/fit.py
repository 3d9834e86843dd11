"""Whether an engine's ranks fit on a cluster, and how; pure."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_ray_compat.executors.placement import Bundle


def packed(free: Mapping[str, float], driver_node: str, world_size: int) -> list[Bundle] | None:
    """Return the bundles of a group of *world_size* that Ray would pack, the driver's node first.

    Ray promises no order; this is the one with the fewest nodes after the driver's.

    Args:
        free: node id -> free devices.
        driver_node: where the driver is; takes bundles first if it has any device.
        world_size: number of bundles with one device each.

    Returns:
        None when the free devices are too few.
    """
    order = sorted(free, key=lambda node: (node != driver_node, -free[node], node))
    nodes = [node for node in order for _ in range(int(free[node]))]
    if len(nodes) < world_size:
        return None
    return [Bundle(index, node, 1.0) for index, node in enumerate(nodes[:world_size])]


def whole_groups(free: Mapping[str, float], tensor_parallel_size: int) -> int:
    """Return how many tensor-parallel groups could each be on one node."""
    return sum(int(devices) // tensor_parallel_size for devices in free.values())
