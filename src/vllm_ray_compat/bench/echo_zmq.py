"""An echo process of a ZeroMQ floor: ``python -m … ADDRESS``."""

from __future__ import annotations

import sys

import zmq

from vllm_ray_compat.bench.echo_processes import READY
from vllm_ray_compat.bench.floor import ANSWER_BYTES


def main() -> None:
    """Answer each message with its size, until the process is ended."""
    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(sys.argv[1])
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    while True:
        size = len(socket.recv(copy=False))
        socket.send(size.to_bytes(ANSWER_BYTES, "little"))


if __name__ == "__main__":
    main()
