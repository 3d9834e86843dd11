"""Shared memory between processes of one machine: flags, and both sides spin.

Where there are fewer cores than processes, all of them yield between two looks, so a round trip
includes the scheduler there. Between measurements the processes sleep.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from vllm_ray_compat.bench.echo_processes import EchoProcesses
from vllm_ray_compat.bench.floor import Floor, check_echo
from vllm_ray_compat.bench.payload import PICKLED_BYTES
from vllm_ray_compat.bench.shared_area import AT_REST, SharedArea, must_yield


class SharedMemoryFloor(Floor):
    """A payload in memory that all processes have mapped, and a counter for each of them."""

    def __init__(self, world_size: int) -> None:
        self._yielding = must_yield(world_size + 1)
        self.title = "shared memory, both sides spin" + (
            ", and yield: fewer cores than processes" if self._yielding else ""
        )
        size = SharedArea.size_for(max(PICKLED_BYTES.values()), world_size)
        # Without a name there is nothing in /dev/shm to be left by whoever is killed.
        file = os.memfd_create("raycompat-floor")
        try:
            os.ftruncate(file, size)
            self._area = SharedArea(file, size)
            self._processes = EchoProcesses(
                "vllm_ray_compat.bench.echo_shared_memory",
                [
                    [str(file), str(size), str(rank), str(int(self._yielding))]
                    for rank in range(world_size)
                ],
                pass_fds=[file],
            )
        finally:
            os.close(file)
        self.pids = self._processes.pids
        self._sent = 0

    def awake(self) -> AbstractContextManager[object]:
        """Return a context in which the processes spin."""
        return self._spinning()

    @contextmanager
    def _spinning(self) -> Iterator[None]:
        self._area.sent = self._sent
        self._processes.wake()
        try:
            yield
        finally:
            self._area.sent = AT_REST

    def round_trip(self, payload: bytes) -> None:
        """Send *payload* to all processes, and take an answer from each; see :class:`Floor`.

        Raises:
            EchoDiedError: a process has ended.
        """
        area = self._area
        self._sent += 1
        area.write(payload)
        area.sent = self._sent
        for rank in range(len(self.pids)):
            size = area.wait_for_answer(
                rank, self._sent, yielding=self._yielding, check=self._processes.check
            )
            check_echo(size, payload)

    def close(self) -> None:
        """End the processes and unmap the memory."""
        self._processes.close()
        self._area.close()
