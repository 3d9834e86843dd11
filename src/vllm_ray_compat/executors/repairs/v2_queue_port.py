"""V2's queues between nodes look for a free port and lose it; with VLLM_PORT, all for the same."""

from __future__ import annotations

import socket
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import original, replaced
from vllm_ray_compat.schedule import Backend

#: Bound, but not listening: ZeroMQ can bind such a port, too (both with SO_REUSEADDR), and
#: nobody else is given it. Kept until the process ends: one socket for each queue.
_held: list[socket.socket] = []


def held_port() -> int:
    """Return a free port of the kernel's choosing that is kept for this process."""
    try:
        holder = socket.socket(socket.AF_INET6)
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _bind(holder, "::")
    except OSError:  # no IPv6 here
        holder = socket.socket(socket.AF_INET)
        _bind(holder, "0.0.0.0")
    _held.append(holder)
    return int(holder.getsockname()[1])


def _bind(holder: socket.socket, host: str) -> None:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, 0))
    except OSError:
        holder.close()
        raise


class _Driver(Mixin):
    """The broadcast queue's port."""

    def _init_executor(self) -> None:
        from vllm.distributed.device_communicators import shm_broadcast

        with replaced(shm_broadcast, get_open_port=held_port):
            super()._init_executor()


class _Worker(Mixin):
    """The response queue's port, and those of the queues within the groups of ranks."""

    def initialize_worker(self, *args: Any, **kwargs: Any) -> None:
        """Have all queues of this process use ports that are held."""
        from vllm.distributed.device_communicators import shm_broadcast

        original(shm_broadcast, "get_open_port")
        # For good: the process is this worker's alone.
        shm_broadcast.get_open_port = held_port
        super().initialize_worker(*args, **kwargs)


REPAIR = Repair(
    name="v2-queue-port",
    defects=(),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in="0.28.0",
    reports=("https://github.com/NVIDIA-NeMo/RL/pull/3280",),
    symptom=(
        "With VLLM_PORT set, workers of one node that answer to another one try to bind the same "
        "port: zmq.error.ZMQError, Address already in use."
    ),
    effect="Message queues between nodes use ports of the kernel's choosing that are held.",
    executor=_Driver,
    worker=_Worker,
)
