"""What every floor can do."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager, nullcontext

#: Name -> module and class; an arm imports what its floor is made of, and no other.
FLOORS = {
    "zmq-ipc": "floor_zmq:ZmqIpcFloor",
    "zmq-tcp": "floor_zmq:ZmqTcpFloor",
    "shared-memory": "floor_shared_memory:SharedMemoryFloor",
    "ray-actor": "floor_ray:RayActorFloor",
    "compiled-graph": "floor_ray:CompiledGraphFloor",
}

#: An answer is the size of what came, in this many bytes.
ANSWER_BYTES = 8


def needs_ray(floor: str) -> bool:
    """Say whether a floor is one of Ray, on a cluster."""
    return FLOORS[floor].startswith("floor_ray:")


class WrongEchoError(Exception):
    """An answer does not tell the size of what was sent: what was timed is no round trip."""


class Floor(abc.ABC):
    """Processes that do nothing but answer, and one way to reach them."""

    #: What it is, for people.
    title: str
    #: Distributions it is made of.
    distributions: tuple[str, ...] = ()
    #: Of the processes that answer.
    pids: list[int]

    @abc.abstractmethod
    def round_trip(self, payload: bytes) -> None:
        """Send *payload* to all processes, and take an answer from each.

        Raises:
            WrongEchoError: an answer is wrong.
        """

    def awake(self) -> AbstractContextManager[object]:
        """Return a context in which round trips are made; outside it nothing uses the CPU."""
        return nullcontext()

    @abc.abstractmethod
    def close(self) -> None:
        """End the processes, and what they were reached through. Idempotent."""


def check_echo(answer: int, payload: bytes) -> None:
    """Check that *answer* is the size of *payload*.

    Raises:
        WrongEchoError: it is not.
    """
    if answer != len(payload):
        raise WrongEchoError(f"Of {len(payload)} bytes sent, {answer} arrived.")
