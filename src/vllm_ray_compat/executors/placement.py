"""Where ranks go: bundles in, ranks out. Pure, so that every case is a unit test without Ray.

The order is that of RFC 35848: the driver's node first, then node by node; a rank and its local
rank are known before any actor exists, so no rank is ever rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_ray_compat.errors import RaycompatError


class PlacementError(RaycompatError):
    """The placement group cannot hold the workers as asked."""


@dataclass(frozen=True)
class Bundle:
    """One bundle of a placement group: its index, its node and how many devices it reserves."""

    index: int
    node_id: str
    devices: float


@dataclass(frozen=True)
class RankPlacement:
    """Where one rank runs; the local rank counts the ranks of this engine on the node."""

    rank: int
    local_rank: int
    bundle_index: int
    node_id: str


def read_bundles(
    specs: Sequence[Mapping[str, float]], nodes: Mapping[int, str], device_key: str
) -> list[Bundle]:
    """Build bundles from a placement group's specs and Ray's table of it.

    Args:
        specs: ``placement_group.bundle_specs``, one mapping of resources a bundle.
        nodes: ``placement_group_table(...)["bundles_to_node_id"]``.
        device_key: the resource that is a device, for example ``GPU``.
    """
    return [
        Bundle(index, nodes[index], float(spec.get(device_key, 0)))
        for index, spec in enumerate(specs)
    ]


def parse_bundle_indices(text: str) -> list[int]:
    """Parse ``VLLM_RAY_BUNDLE_INDICES``: comma-separated numbers, the order is the rank order.

    Raises:
        PlacementError: something in it is not a number.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PlacementError(
            f"VLLM_RAY_BUNDLE_INDICES={text!r} is not a list of numbers such as 0,1,2,3."
        ) from None


def place(
    bundles: Sequence[Bundle],
    driver_node: str,
    world_size: int,
    indices: Sequence[int] | None = None,
) -> list[RankPlacement]:
    """Give every rank a bundle.

    Without *indices*: the bundles that hold a device, the driver's node first, the bundles of a
    node together and in their order, the first *world_size* of them. With *indices*: exactly
    those, in the order given.

    Raises:
        PlacementError: too few bundles, or indices that are of the wrong number, not unique, out
            of range, or without a device.
    """
    if indices is None:
        chosen = sorted(
            (b for b in bundles if b.devices > 0),
            key=lambda b: (b.node_id != driver_node, b.node_id, b.index),
        )[:world_size]
        if len(chosen) < world_size:
            raise PlacementError(
                f"The placement group has {len(chosen)} bundles with a device, and {world_size} "
                "ranks need one each. Make it larger, or lower the tensor or pipeline parallel "
                "size."
            )
    else:
        chosen = _chosen_by_hand(bundles, world_size, indices)
    on_node: dict[str, int] = {}
    placed = []
    for rank, bundle in enumerate(chosen):
        local_rank = on_node.get(bundle.node_id, 0)
        on_node[bundle.node_id] = local_rank + 1
        placed.append(RankPlacement(rank, local_rank, bundle.index, bundle.node_id))
    return placed


def _chosen_by_hand(
    bundles: Sequence[Bundle], world_size: int, indices: Sequence[int]
) -> list[Bundle]:
    shown = ",".join(map(str, indices))
    by_index = {bundle.index: bundle for bundle in bundles}
    if len(indices) != world_size:
        raise PlacementError(
            f"VLLM_RAY_BUNDLE_INDICES={shown} names {len(indices)} bundles, and there are "
            f"{world_size} ranks. Name one bundle for each rank."
        )
    if len(set(indices)) != len(indices):
        raise PlacementError(
            f"VLLM_RAY_BUNDLE_INDICES={shown} names a bundle twice. Each rank needs its own."
        )
    for index in indices:
        if index not in by_index:
            raise PlacementError(
                f"VLLM_RAY_BUNDLE_INDICES={shown}: the placement group has no bundle {index}, "
                f"only 0 to {len(bundles) - 1}."
            )
        if by_index[index].devices <= 0:
            raise PlacementError(
                f"VLLM_RAY_BUNDLE_INDICES={shown}: bundle {index} reserves no device."
            )
    return [by_index[index] for index in indices]


def local_ranks_of(placed: Sequence[RankPlacement], node_id: str) -> list[int]:
    """Return the ranks that run on *node_id*."""
    return [p.rank for p in placed if p.node_id == node_id]
