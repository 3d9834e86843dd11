"""Where ranks go: bundles in, ranks out. Pure, so that every case is a unit test without Ray.

The order is that of RFC 35848: the driver's node first, then node by node; a rank and its local
rank are known before any actor exists, so no rank is ever rewritten. Beyond it, a tensor-parallel
group is kept on one node wherever that can be done: an all-reduce over the network at every layer
is many times slower (ray#59547).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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


@dataclass(frozen=True)
class SplitGroup:
    """A tensor-parallel group whose ranks are on several nodes."""

    number: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        ranks = f"ranks {self.ranks[0]} to {self.ranks[-1]}"
        return f"tensor-parallel group {self.number} ({ranks}) is on nodes {', '.join(self.nodes)}"


def parse_bundle_indices(text: str) -> list[int]:
    """Parse ``VLLM_RAY_BUNDLE_INDICES``: comma-separated numbers, the order is the rank order.

    Spaces around a number are taken, as vLLM does.

    Raises:
        PlacementError: something in it is not a number; all such parts are named.
    """
    parts = text.split(",")
    bad = [part for part in parts if not re.fullmatch(r"\s*[0-9]+\s*", part)]
    if bad:
        raise PlacementError(
            f"VLLM_RAY_BUNDLE_INDICES={text!r} is not a list of numbers with a comma between them, "
            f"such as 0,1,2,3. Not a number: {', '.join(map(repr, bad))}."
        )
    return [int(part) for part in parts]


def place(
    bundles: Sequence[Bundle],
    driver_node: str,
    world_size: int,
    indices: Sequence[int] | None = None,
    *,
    tensor_parallel_size: int = 1,
    alive: Collection[str] | None = None,
) -> list[RankPlacement]:
    """Give every rank a bundle.

    Without *indices*: bundles that hold a device, the driver's node first, the bundles of a node
    together and in their order. As few tensor-parallel groups (ranks in a row) as can be are
    split over nodes, if need be by passing over a bundle. With *indices*: exactly those, in the
    order given.

    Args:
        bundles: of the placement group.
        driver_node: where the driver runs; may hold none of them.
        world_size: number of ranks.
        indices: from ``VLLM_RAY_BUNDLE_INDICES``.
        tensor_parallel_size: ranks of a group; divides *world_size*.
        alive: the nodes that live; None: all.

    Raises:
        PlacementError: too few bundles, or indices that are of the wrong number, not unique, out
            of range, without a device, or on a dead node; every fault of them is named.
    """
    if indices is None:
        usable = [b for b in bundles if b.devices > 0 and (alive is None or b.node_id in alive)]
        if len(usable) < world_size:
            raise PlacementError(
                f"The placement group has {len(usable)} bundles with a device"
                f"{'' if alive is None else ' on a living node'}, and {world_size} ranks need one "
                "each. Make it larger, or lower the tensor or pipeline parallel size."
            )
        chosen = _choose(usable, driver_node, world_size, tensor_parallel_size)
    else:
        chosen = _chosen_by_hand(bundles, world_size, indices, alive)
    on_node: Counter[str] = Counter()
    placed = []
    for rank, bundle in enumerate(chosen):
        placed.append(RankPlacement(rank, on_node[bundle.node_id], bundle.index, bundle.node_id))
        on_node[bundle.node_id] += 1
    return placed


def _choose(usable: Sequence[Bundle], driver_node: str, world_size: int, tp: int) -> list[Bundle]:
    """Choose by node, with as few groups of *tp* over several nodes as there can be."""
    ordered = sorted(usable, key=lambda b: (b.node_id != driver_node, b.node_id, b.index))
    by_node: dict[str, list[Bundle]] = {}
    for bundle in ordered:
        by_node.setdefault(bundle.node_id, []).append(bundle)
    # Of each node as many whole groups as it holds, and what is left over.
    whole: list[list[Bundle]] = []
    rest: list[Bundle] = []
    for node in by_node.values():
        fits = len(node) // tp * tp
        whole.append(node[:fits])
        rest += node[fits:]
    missing = world_size - sum(map(len, whole))
    if missing <= 0:
        return [bundle for part in whole for bundle in part][:world_size]
    unavoidable = missing // tp
    plain = ordered[:world_size]
    if len(_split([b.node_id for b in plain], tp)) <= unavoidable:
        return plain
    first, others = (whole[0], whole[1:]) if driver_node in by_node else ([], whole)
    return [*first, *rest[:missing], *(bundle for part in others for bundle in part)]


def _split(nodes: Sequence[str], tp: int) -> list[SplitGroup]:
    found = []
    for first in range(0, len(nodes), tp):
        of_group = nodes[first : first + tp]
        if len(set(of_group)) > 1:
            ranks = tuple(range(first, first + len(of_group)))
            found.append(SplitGroup(first // tp, ranks, tuple(dict.fromkeys(of_group))))
    return found


def split_groups(placed: Sequence[RankPlacement], tensor_parallel_size: int) -> list[SplitGroup]:
    """Return the tensor-parallel groups whose ranks are on several nodes."""
    return _split([p.node_id for p in placed], tensor_parallel_size)


def _chosen_by_hand(
    bundles: Sequence[Bundle],
    world_size: int,
    indices: Sequence[int],
    alive: Collection[str] | None,
) -> list[Bundle]:
    by_index = {bundle.index: bundle for bundle in bundles}
    faults = []
    if len(indices) != world_size:
        faults.append(
            f"it names {len(indices)} bundles, and there are {world_size} ranks; name one bundle "
            "for each rank"
        )
    twice = [index for index, times in Counter(indices).items() if times > 1]
    if twice:
        faults.append(f"it names {_bundles(twice)} more than once; each rank needs its own")
    named = list(dict.fromkeys(indices))
    unknown = [index for index in named if index not in by_index]
    if unknown:
        faults.append(
            f"the placement group has no {_bundles(unknown)}, only 0 to {len(bundles) - 1}"
        )
    known = [by_index[index] for index in named if index in by_index]
    empty = [bundle.index for bundle in known if bundle.devices <= 0]
    if empty:
        faults.append(f"{_bundles(empty)} reserves no device")
    if alive is not None:
        faults += [
            f"bundle {bundle.index} is on node {bundle.node_id}, which is dead"
            for bundle in known
            if bundle.node_id not in alive
        ]
    if faults:
        shown = ",".join(map(str, indices))
        raise PlacementError(f"VLLM_RAY_BUNDLE_INDICES={shown}: {'; '.join(faults)}.")
    return [by_index[index] for index in indices]


def _bundles(indices: Sequence[int]) -> str:
    return f"bundle {', '.join(map(str, indices))}"


def local_ranks_of(placed: Sequence[RankPlacement], node_id: str) -> list[int]:
    """Return the ranks that run on *node_id*."""
    return [p.rank for p in placed if p.node_id == node_id]
