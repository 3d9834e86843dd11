"""ZeroMQ between processes of one machine, over Unix sockets or TCP: a PAIR for each process.

Both ends wait in the kernel. A message goes through ZeroMQ's own threads on either side; that is
what it takes, and what vLLM's message queue takes for what shared memory cannot hold.
"""

from __future__ import annotations

import secrets

import zmq

from vllm_ray_compat.bench.echo_processes import EchoDiedError, EchoProcesses
from vllm_ray_compat.bench.floor import Floor, check_echo

_ANSWER_WITHIN_MS = 10_000


class ZmqFloor(Floor):
    """One PAIR of sockets for each process; subclasses say where they are bound."""

    distributions = ("pyzmq",)

    def __init__(self, world_size: int) -> None:
        self._context = zmq.Context()
        self._sockets = [self._context.socket(zmq.PAIR) for _ in range(world_size)]
        addresses = [self._bind(socket) for socket in self._sockets]
        for socket in self._sockets:
            socket.set(zmq.RCVTIMEO, _ANSWER_WITHIN_MS)
        try:
            self._processes = EchoProcesses(
                "vllm_ray_compat.bench.echo_zmq", [[address] for address in addresses]
            )
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.pids = self._processes.pids

    def _bind(self, socket: zmq.Socket[bytes]) -> str:
        """Bind *socket*; return its address."""
        raise NotImplementedError

    def round_trip(self, payload: bytes) -> None:
        """Send *payload* to all processes, and take an answer from each; see :class:`Floor`.

        Raises:
            EchoDiedError: there was no answer within 10 s.
        """
        for socket in self._sockets:
            socket.send(payload, copy=False)
        for socket, pid in zip(self._sockets, self.pids, strict=True):
            try:
                answer = socket.recv()
            except zmq.Again:
                raise EchoDiedError(f"Echo process {pid} does not answer.") from None
            check_echo(int.from_bytes(answer, "little"), payload)

    def close(self) -> None:
        """End the processes and close the sockets."""
        self._processes.close()
        self._context.destroy(linger=0)


class ZmqIpcFloor(ZmqFloor):
    """Over Unix sockets without a file (Linux), so that none is left by whoever is killed."""

    title = "ZeroMQ PAIR sockets over Unix sockets, one pair a process"

    def _bind(self, socket: zmq.Socket[bytes]) -> str:
        address = f"ipc://@raycompat-floor-{secrets.token_hex(16)}"
        socket.bind(address)
        return address


class ZmqTcpFloor(ZmqFloor):
    """Over TCP on the loopback interface."""

    title = "ZeroMQ PAIR sockets over TCP on 127.0.0.1, one pair a process"

    def _bind(self, socket: zmq.Socket[bytes]) -> str:
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
