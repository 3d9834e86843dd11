"""Whether an engine's ranks fit on a cluster, and how; pure."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_ray_compat.executors.placement import Bundle


def packed(free: Mapping[str, float], first: str | None, world_size: int) -> list[Bundle] | None:
    """Return the bundles of a group of *world_size* as Ray would pack them.

    Ray promises no order; this is the one with the fewest nodes.

    Args:
        free: node id -> free devices.
        first: the node that the first bundle is pinned to, if any (see :func:`pinned`).
        world_size: number of bundles with one device each.

    Returns:
        None when the free devices are too few.
    """
    order = sorted(free, key=lambda node: (node != first, -free[node], node))
    nodes = [node for node in order for _ in range(int(free[node]))]
    if len(nodes) < world_size:
        return None
    return [Bundle(index, node, 1.0) for index, node in enumerate(nodes[:world_size])]


def pinned(
    free: Mapping[str, float], driver_node: str, tensor_parallel_size: int, *, needs_driver: bool
) -> str | None:
    """Return the node on which an engine's own group begins, as the executors ask Ray for it.

    Legacy pins its first bundle to the driver's node; a group made for V2 begins there where it
    has devices for a whole tensor-parallel group, and anywhere else.
    """
    enough = free.get(driver_node, 0) >= tensor_parallel_size
    return driver_node if needs_driver or enough else None


def whole_groups(free: Mapping[str, float], tensor_parallel_size: int) -> int:
    """Return how many tensor-parallel groups could each be on one node."""
    return sum(int(devices) // tensor_parallel_size for devices in free.values())
