"""An echo process of the shared-memory floor: ``python -m … FILE SIZE RANK YIELDING``."""

from __future__ import annotations

import os
import sys

from vllm_ray_compat.bench.echo_processes import READY
from vllm_ray_compat.bench.shared_area import AT_REST, SharedArea


def main() -> None:
    """Answer each message with its size; at rest wait for a byte, and end with the input."""
    file, size, rank, yielding = (int(argument) for argument in sys.argv[1:])
    area = SharedArea(file, size)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    seen = 0
    while os.read(0, 1):
        while (number := area.wait_for_message(seen, yielding=bool(yielding))) != AT_REST:
            area.answer(rank, number, len(area.read()))
            seen = number


if __name__ == "__main__":
    main()
