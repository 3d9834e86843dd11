"""Changes that are none: what differs from run to run and must raise no alarm."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from vllm_ray_compat.parity.capture import Capture
from vllm_ray_compat.parity.faults.fault import Fault, Kind

#: The kind that is put in when the capture is written, see ``write.write_capture``.
KEY_ORDER = "key-order"


def _once(capture: Capture) -> Iterator[None]:
    if capture.results:
        yield None


def _latency(capture: Capture, _at: None, random: Random) -> Fault:
    for result in capture.results:
        if result.token_times_s is not None:
            factor = random.uniform(0.5, 3)
            result.token_times_s = [seconds * factor for seconds in result.token_times_s]
        else:
            tokens = result.outputs[0].token_ids if result.outputs else []
            result.token_times_s = [i * random.random() for i in range(len(tokens))]
    if capture.engine is not None:
        capture.engine.start_s *= random.uniform(0.5, 3)
    if capture.end is not None:
        capture.end.total_s *= random.uniform(0.5, 3)
        capture.end.workloads_s = {
            name: seconds * random.uniform(0.5, 3)
            for name, seconds in capture.end.workloads_s.items()
        }
    return _none("latency", capture)


def _processes(capture: Capture, _at: None, random: Random) -> Fault:
    if capture.engine is not None:
        names: dict[str | None, str] = {}
        for worker in capture.engine.workers:
            worker.pid = random.randrange(1, 1 << 22)
            if worker.node_id is not None:
                worker.node_id = names.setdefault(worker.node_id, f"{random.getrandbits(224):056x}")
    capture.header.started_at += random.uniform(1, 1e6)
    return _none("processes", capture)


def _key_order(capture: Capture, _at: None, _random: Random) -> Fault:
    return _none(KEY_ORDER, capture)


def _none(kind: str, capture: Capture) -> Fault:
    first = capture.results[0]
    return Fault(
        kind=kind,
        field="none",
        workload=first.workload,
        request=first.request,
        position=None,
        harmless=True,
    )


KINDS = (
    Kind("latency", "only times changed", _once, _latency),
    Kind("processes", "only process ids and names of nodes changed", _once, _processes),
    Kind(KEY_ORDER, "only the order of keys in the JSON changed", _once, _key_order),
)
