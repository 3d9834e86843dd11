"""Where ranks go: bundles in, ranks out. Pure, so that every case is a unit test without Ray.

The order is that of RFC 35848: the driver's node first, then node by node; a rank and its local
rank are known before any actor exists, so no rank is ever rewritten. Beyond it, a tensor-parallel
group is kept on one node wherever that can be done: an all-reduce over the network at every layer
is many times slower (ray#59547).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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


def named_twice(indices: Sequence[int]) -> list[int]:
    """Return the bundles that a list names more than once."""
    return [index for index, times in Counter(indices).items() if times > 1]


def check_bundles(
    specs: Sequence[Mapping[str, float]],
    world_size: int,
    device_key: str,
    devices_per_rank: float = 1.0,
) -> None:
    """Check that a placement group can hold an engine, before Ray has placed it.

    Args:
        specs: ``placement_group.bundle_specs``.
        world_size: number of ranks.
        device_key: the resource that is a device, for example ``GPU``.
        devices_per_rank: what the actor of a rank asks for (``VLLM_RAY_PER_WORKER_GPUS``).

    Raises:
        PlacementError: a bundle reserves more than one device, or too few reserve enough.
    """
    devices = [float(spec.get(device_key, 0)) for spec in specs]
    large = [index for index, amount in enumerate(devices) if amount > 1]
    if large:
        raise PlacementError(
            f"{_bundles(large).capitalize()} of the placement group reserves more than one "
            f"{device_key}, and a rank uses one: the others would be lost. Give every rank a "
            f"bundle of its own: {_wanted(world_size, device_key)}."
        )
    usable = sum(amount > 0 and amount >= devices_per_rank for amount in devices)
    if usable < world_size:
        too_small = sum(0 < amount < devices_per_rank for amount in devices)
        raise PlacementError(
            f"The placement group has {usable} bundles with a {device_key}"
            + (
                f" ({too_small} more with less than the {devices_per_rank:g} that a rank takes, "
                "VLLM_RAY_PER_WORKER_GPUS)"
                if too_small
                else ""
            )
            + f", and {world_size} ranks need one each. Make it {_wanted(world_size, device_key)}, "
            "or lower the tensor or pipeline parallel size."
        )


def _wanted(world_size: int, device_key: str) -> str:
    return f"[{{'{device_key}': 1}}] * {world_size}"


def place(
    bundles: Sequence[Bundle],
    driver_node: str,
    world_size: int,
    indices: Sequence[int] | None = None,
    *,
    tensor_parallel_size: int = 1,
    alive: Collection[str] | None = None,
    devices_per_rank: float = 1.0,
    needs_driver: bool = False,
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
        devices_per_rank: what a rank takes of its bundle; smaller ones count as without a device.
        needs_driver: whether rank 0 has to be on the driver's node, as legacy wants it: the others
            meet at an address of the driver's.

    Raises:
        PlacementError: too few bundles, or indices that are of the wrong number, not unique, out
            of range, without a device, or on a dead node; every fault of them is named. Or none
            on the driver's node, where there has to be one.
    """
    if indices is None:
        usable = [
            b
            for b in bundles
            if 0 < b.devices >= devices_per_rank and (alive is None or b.node_id in alive)
        ]
        if len(usable) < world_size:
            raise PlacementError(
                f"The placement group has {len(usable)} bundles with a device"
                f"{'' if alive is None else ' on a living node'}, and {world_size} ranks need one "
                "each. Make it larger, or lower the tensor or pipeline parallel size."
            )
        if needs_driver and all(b.node_id != driver_node for b in usable):
            raise PlacementError(
                "The placement group has no bundle with a device on the driver's node "
                f"({driver_node}), and the legacy executor needs rank 0 there. Reserve one there "
                "(the group's creator can ask for 'node:<address>': 0.001 in a bundle), start the "
                "engine on a node of the group, or use RayExecutorV2."
            )
        chosen = _choose(usable, driver_node, world_size, tensor_parallel_size, needs_driver)
    else:
        chosen = _chosen_by_hand(bundles, world_size, indices, alive, devices_per_rank)
        if needs_driver and all(b.node_id != driver_node for b in chosen):
            raise PlacementError(
                f"VLLM_RAY_BUNDLE_INDICES={','.join(map(str, indices))}: none of these bundles is "
                f"on the driver's node ({driver_node}), and the legacy executor needs rank 0 "
                "there. Name one that is, or use RayExecutorV2."
            )
    return in_order((bundle.index, bundle.node_id) for bundle in chosen)


def in_order(places: Iterable[tuple[int, str]]) -> list[RankPlacement]:
    """Give ranks, and local ranks, to *places* (index of the bundle, node) in the order given."""
    on_node: Counter[str] = Counter()
    placed = []
    for rank, (index, node_id) in enumerate(places):
        placed.append(RankPlacement(rank, on_node[node_id], index, node_id))
        on_node[node_id] += 1
    return placed


def _choose(
    usable: Sequence[Bundle], driver_node: str, world_size: int, tp: int, needs_driver: bool
) -> list[Bundle]:
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
    if needs_driver and len(by_node[driver_node]) < tp:
        return _from_the_driver_on(by_node[driver_node], rest, whole, world_size, tp)
    if missing <= 0:
        return [bundle for part in whole for bundle in part][:world_size]
    unavoidable = missing // tp
    plain = ordered[:world_size]
    if len(_split([b.node_id for b in plain], tp)) <= unavoidable:
        return plain
    first, others = (whole[0], whole[1:]) if driver_node in by_node else ([], whole)
    return [*first, *rest[:missing], *(bundle for part in others for bundle in part)]


def _from_the_driver_on(
    drivers: Sequence[Bundle],
    rest: Sequence[Bundle],
    whole: Sequence[Sequence[Bundle]],
    world_size: int,
    tp: int,
) -> list[Bundle]:
    """Choose where the driver's node has to be used and cannot hold a group of *tp*.

    The first group is split then, and the others are whole as far as whole ones are left.
    """
    groups = [part[i : i + tp] for part in whole for i in range(0, len(part), tp)]
    kept = min(len(groups), world_size // tp - 1)
    others = [b for b in rest if b not in drivers]
    pool = [*drivers, *others, *(b for group in groups[kept:] for b in group)]
    return [*pool[: world_size - kept * tp], *(b for group in groups[:kept] for b in group)]


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
    devices_per_rank: float,
) -> list[Bundle]:
    by_index = {bundle.index: bundle for bundle in bundles}
    faults = []
    if len(indices) != world_size:
        faults.append(
            f"it names {len(indices)} bundles, and there are {world_size} ranks; name one bundle "
            "for each rank"
        )
    if twice := named_twice(indices):
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
    faults += [
        f"bundle {bundle.index} reserves {bundle.devices:g} of a device, and a rank takes "
        f"{devices_per_rank:g} (VLLM_RAY_PER_WORKER_GPUS)"
        for bundle in known
        if 0 < bundle.devices < devices_per_rank
    ]
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
