"""What this machine can do at best: an answer from each of N processes that do nothing else.

Run as ``python -m vllm_ray_compat.bench.floor_arm SPEC_JSON``; ``protocol`` says how it is asked.
Its backend is a key of :data:`~.floor.FLOORS`. It measures ``round_trip`` with ``path`` ``rpc``;
payloads are bytes, as many as the pickled message of that name has, because pickling is the
executor's affair.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from functools import partial

from vllm_ray_compat.bench import round_trips
from vllm_ray_compat.bench.floor import FLOORS, Floor
from vllm_ray_compat.bench.payload import PICKLED_BYTES, check_known
from vllm_ray_compat.bench.protocol import ArmSpec, Ready, serve
from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.topology import parse_topology


class FloorArm(round_trips.RoundTripArm):
    """A live floor, and what can be measured of it."""

    def __init__(self, spec: ArmSpec) -> None:
        """Start the floor.

        Raises:
            UsageError: there is no such floor, or the topology has pipeline stages.
        """
        if spec.backend not in FLOORS:
            raise unknown("floor", spec.backend, FLOORS)
        topology = parse_topology(spec.topology)
        if topology.pp > 1:
            raise UsageError(
                f"Topology {spec.topology!r} has pipeline stages, which floors have not: use tpN."
            )
        began = time.monotonic()
        module, _, name = FLOORS[spec.backend].partition(":")
        kind = getattr(importlib.import_module(f"vllm_ray_compat.bench.{module}"), name)
        self._floor: Floor = kind(topology.world_size)
        self._start_s = time.monotonic() - began

    def ready(self) -> Ready:
        """Warm up, and say what runs."""
        self.round_trip("rpc", "small", calls=2)
        return Ready(
            executor=self._floor.title,
            versions={
                "python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in self._floor.distributions},
            },
            pids=[os.getpid(), *self._floor.pids],
            start_s={"processes": self._start_s},
        )

    def round_trip(self, path: str, payload: str, calls: int) -> dict[str, float]:
        """Time *calls* round trips; see :func:`~.latencies.figures`.

        Raises:
            UsageError: no such path or payload.
        """
        if path != "rpc":
            raise unknown("path", path, ("rpc",))
        check_known(payload)
        message = b"\xa5" * PICKLED_BYTES[payload]
        with self._floor.awake():
            return round_trips.measure(partial(self._floor.round_trip, message), calls)

    def close(self) -> None:
        """End the floor's processes."""
        self._floor.close()


if __name__ == "__main__":
    serve(FloorArm)
