"""Where the workers of two arms are: rank, local rank, node and device, compared as structure.

Node names, process ids and device numbers differ from run to run and from machine to machine.
What must be the same is which ranks share a node, and which device of it each rank uses. The
bundle of a rank is told where it differs: Ray spreads the bundles of a new group over nodes as it
likes, but in a group that is given, what else lives in a bundle is next to that rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_ray_compat.parity.capture import Worker
from vllm_ray_compat.parity.divergence import Divergence, Outcome

#: What is compared of every rank.
PLACEMENT_FIELDS = ("rank", "local_rank", "node", "bundle", "devices")


@dataclass(frozen=True)
class RankDifference:
    """One rank that is placed otherwise."""

    rank: int
    field: str
    result: Outcome
    divergence: Divergence


def compare_placement(
    reference: Sequence[Worker], candidate: Sequence[Worker]
) -> list[RankDifference]:
    """Return what differs, rank by rank.

    A rank that only one arm has is a difference of ``rank``. Devices are compared where both
    arms recorded them (``mp`` has no Ray to ask): how many a rank has and whether it shares one
    is judged. Which of the node's devices Ray assigned it is ``noted`` only: vLLM's executors use
    the node's devices in the order of the local ranks, and Ray assigns them in any. So is another
    bundle, which ``mp`` has none of.
    """
    left, right = _by_rank(reference), _by_rank(candidate)
    nodes = _nodes(left, right)
    devices = _devices(left), _devices(right)
    found: list[RankDifference] = []
    for rank in sorted(left.keys() | right.keys()):
        one, other = left.get(rank), right.get(rank)
        if one is None or other is None:
            present = Divergence(position=rank, reference=bool(one), candidate=bool(other))
            found.append(RankDifference(rank, "rank", "different", present))
            continue
        if one.local_rank != other.local_rank:
            found.append(_differs(rank, "local_rank", one.local_rank, other.local_rank))
        if nodes[0][rank] != nodes[1][rank]:
            found.append(_differs(rank, "node", nodes[0][rank], nodes[1][rank]))
        if None not in (one.bundle, other.bundle) and one.bundle != other.bundle:
            found.append(_differs(rank, "bundle", one.bundle, other.bundle, "noted"))
        mine, theirs = devices[0].get(rank), devices[1].get(rank)
        if mine is None or theirs is None or mine == theirs:
            continue
        judged = mine.counts != theirs.counts or mine.shared != theirs.shared
        found.append(
            _differs(rank, "devices", mine.told, theirs.told, "different" if judged else "noted")
        )
    return found


def _differs(
    rank: int, field: str, reference: object, candidate: object, result: Outcome = "different"
) -> RankDifference:
    divergence = Divergence(position=rank, reference=reference, candidate=candidate)
    return RankDifference(rank, field, result, divergence)


def _by_rank(workers: Sequence[Worker]) -> dict[int, Worker]:
    return {worker.rank: worker for worker in workers}


def _node(worker: Worker) -> str:
    return worker.node_id or worker.node_ip


def _nodes(
    left: Mapping[int, Worker], right: Mapping[int, Worker]
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the number of each rank's node.

    In one cluster (the same nodes on both sides) a node is itself; else nodes are numbered as
    the ranks come upon them.
    """
    a, b = ({_node(w) for w in side.values()} for side in (left, right))
    if a == b:
        number = {node: i for i, node in enumerate(dict.fromkeys(map(_node, left.values())))}
        return (
            {rank: number[_node(w)] for rank, w in left.items()},
            {rank: number[_node(w)] for rank, w in right.items()},
        )
    return _numbered(left), _numbered(right)


def _numbered(workers: Mapping[int, Worker]) -> dict[int, int]:
    number: dict[str, int] = {}
    return {rank: number.setdefault(_node(workers[rank]), len(number)) for rank in sorted(workers)}


@dataclass(frozen=True)
class _Devices:
    """The devices of one rank: how many of each kind, their places among the node's, whether
    another rank of the node has one of them, too."""

    counts: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, tuple[int, ...]], ...]
    shared: bool

    @property
    def told(self) -> dict[str, list[int] | bool]:
        """As a report shows it."""
        shown: dict[str, list[int] | bool] = {kind: list(ids) for kind, ids in self.places}
        return {**shown, "shared": True} if self.shared else shown


def _devices(workers: Mapping[int, Worker]) -> dict[int, _Devices]:
    if not any(worker.devices for worker in workers.values()):
        return {}
    owners: dict[tuple[str, str, str], list[int]] = {}
    for rank, worker in workers.items():
        for kind, ids in worker.devices.items():
            for device in ids:
                owners.setdefault((_node(worker), kind, device), []).append(rank)
    found: dict[int, _Devices] = {}
    for rank, worker in workers.items():
        node = _node(worker)
        places = []
        for kind, ids in sorted(worker.devices.items()):
            here = sorted({d for n, k, d in owners if (n, k) == (node, kind)}, key=_natural)
            places.append((kind, tuple(sorted(here.index(device) for device in ids))))
        found[rank] = _Devices(
            counts=tuple((kind, len(ids)) for kind, ids in places),
            places=tuple(places),
            shared=any(
                len(owners[node, kind, device]) > 1
                for kind, ids in worker.devices.items()
                for device in ids
            ),
        )
    return found


def _natural(device: str) -> tuple[int, str]:
    """Sort key: ``2`` comes before ``10``."""
    return (int(device), "") if device.isdecimal() else (1 << 62, device)
