"""The memory that the shared-memory floor's driver and its echo processes share.

Three kinds of counters, each on a cache line of its own, and the payload after them. The driver
writes the payload and its size, then counts the message; each process copies the payload, writes
what size it has seen, then counts its answer. Everybody else spins on the counters.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable

#: The driver's counter at rest: processes wait for a byte on their standard input instead.
AT_REST = 2**63
_LINE = 64
_PAYLOAD_AT = 4096
_SPINS_BETWEEN_CHECKS = 20_000


class SharedArea:
    """The area, mapped. It has no name, so that nothing is left of it."""

    def __init__(self, file: int, size: int) -> None:
        self._map = mmap.mmap(file, size)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[:_PAYLOAD_AT].cast("Q")
        # Taken and let go of, it keeps the processor from reordering memory accesses.
        self._fence = threading.Lock()

    @staticmethod
    def size_for(payload: int, processes: int) -> int:
        """Return the bytes an area takes for a payload of so many, and for so many processes.

        Raises:
            ValueError: their counters do not fit.
        """
        if (2 + processes) * _LINE > _PAYLOAD_AT:
            raise ValueError(f"{processes} processes are too many for the counters' page.")
        return _PAYLOAD_AT + payload

    @property
    def sent(self) -> int:
        """How many messages the driver has sent, or :data:`AT_REST`."""
        return self._words[0]

    @sent.setter
    def sent(self, number: int) -> None:
        with self._fence:
            self._words[0] = number

    def write(self, payload: bytes) -> None:
        """Put *payload* there; it is sent by counting it."""
        self._bytes[_PAYLOAD_AT : _PAYLOAD_AT + len(payload)] = payload
        self._words[1] = len(payload)

    def read(self) -> bytes:
        """Return a copy of the payload."""
        with self._fence:
            size = self._words[1]
        return bytes(self._bytes[_PAYLOAD_AT : _PAYLOAD_AT + size])

    def answer(self, rank: int, number: int, size: int) -> None:
        """Answer message *number* for *rank*, that it has had *size* bytes."""
        at = (2 + rank) * (_LINE // 8)
        self._words[at + 1] = size
        with self._fence:
            self._words[at] = number

    def wait_for_message(self, *known: int, yielding: bool) -> int:
        """Spin until the driver's counter is none of *known*; return it."""
        words = self._words
        while (number := words[0]) in known:
            if yielding:
                os.sched_yield()
        return number

    def wait_for_answer(
        self, rank: int, number: int, *, yielding: bool, check: Callable[[], None]
    ) -> int:
        """Spin until *rank* has answered message *number*; return the size it tells.

        Args:
            rank: whose answer.
            number: of the message.
            yielding: let others have the core between two looks.
            check: called now and then; raises when there can be no answer.
        """
        words, at = self._words, (2 + rank) * (_LINE // 8)
        spins = 0
        while words[at] != number:
            if yielding:
                os.sched_yield()
            spins += 1
            if spins % _SPINS_BETWEEN_CHECKS == 0:
                check()
        with self._fence:
            return words[at + 1]

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._bytes.release()
        self._map.close()


def must_yield(processes: int) -> bool:
    """Say whether so many spinning processes have fewer cores than they are.

    Then each has to give its core away between two looks, or they wait for the scheduler's slices.
    """
    return processes > len(os.sched_getaffinity(0))
