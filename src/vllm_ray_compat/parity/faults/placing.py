"""Faults of where ranks are placed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from vllm_ray_compat.parity.capture import Capture
from vllm_ray_compat.parity.compare import PLACEMENT
from vllm_ray_compat.parity.faults.fault import Fault, Kind


def _with_devices(capture: Capture) -> Iterator[int]:
    """Yield the ranks that share a node with another, both with devices of their own."""
    workers = capture.engine.workers if capture.engine else []
    for i, worker in enumerate(workers):
        for other in workers:
            same_node = (other.node_id, other.node_ip) == (worker.node_id, worker.node_ip)
            if other is not worker and same_node and worker.devices and other.devices:
                yield i
                break


def _device(capture: Capture, at: int, random: Random) -> Fault:
    """A rank uses the device of another one on its node."""
    assert capture.engine is not None
    worker = capture.engine.workers[at]
    others = [
        w
        for w in capture.engine.workers
        if w is not worker and (w.node_id, w.node_ip) == (worker.node_id, worker.node_ip)
    ]
    other = random.choice([w for w in others if w.devices])
    worker.devices = {kind: list(ids) for kind, ids in other.devices.items()}
    # Both now share one: the lower rank is told first.
    return _fault("device", "devices", sorted([worker.rank, other.rank]))


def _pairs(capture: Capture) -> Iterator[tuple[int, int]]:
    workers = capture.engine.workers if capture.engine else []
    for i, one in enumerate(workers):
        for j in range(i + 1, len(workers)):
            if workers[j].local_rank != one.local_rank or workers[j].node_id != one.node_id:
                yield i, j


def _pp_order(capture: Capture, at: tuple[int, int], _random: Random) -> Fault:
    """Two ranks changed places, as when the stages of a pipeline come in another order."""
    assert capture.engine is not None
    one, other = (capture.engine.workers[i] for i in at)
    field = "local_rank" if one.local_rank != other.local_rank else "node"
    mine, theirs = one.model_dump(), other.model_dump()
    for name in ("local_rank", "node_ip", "node_id", "devices", "visible_devices", "pid"):
        setattr(one, name, theirs[name])
        setattr(other, name, mine[name])
    return _fault("pp-order", field, sorted([one.rank, other.rank]))


def _fault(kind: str, field: str, ranks: list[int]) -> Fault:
    return Fault(
        kind=kind,
        field=field,
        workload=PLACEMENT,
        request=f"rank {ranks[0]}",
        position=ranks[0],
        also=[(PLACEMENT, f"rank {rank}") for rank in ranks[1:]],
    )


KINDS = (
    Kind("device", "a rank uses another one's device", _with_devices, _device),
    Kind("pp-order", "two ranks changed places", _pairs, _pp_order),
)
