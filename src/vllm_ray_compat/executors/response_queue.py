"""The driver's end of a worker's response queue."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol


class Owner(Protocol):
    """What the queue needs of its executor."""

    shutting_down: bool
    #: Which worker died and how; None while all are alive.
    failure: str | None


class ResponseQueue:
    """A response queue whose reader is never left waiting for a dead worker, and is told of it.

    vLLM wakes the readers of shared memory with a bare "cancelled" and cannot wake one that waits
    on TCP at all (defect V2-5): from another node, this looks every half second whether the
    executor has ended.
    """

    _SLICE_S = 0.5

    def __init__(
        self,
        queue: Any,
        executor: Owner,
        *,
        is_remote: bool,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap *queue*; *options* are passed to its ``dequeue`` every time."""
        self._queue = queue
        self._dequeue = partial(queue.dequeue, **options) if options else queue.dequeue
        self._executor = weakref.ref(executor)
        self._is_remote = is_remote

    def dequeue(self, timeout: float | None = None) -> Any:
        """Return the next response.

        Raises:
            TimeoutError: none came within *timeout* seconds.
            RuntimeError: the executor failed or was shut down.
        """
        if self._is_remote:
            return self._dequeue_in_slices(timeout)
        try:
            return self._dequeue(timeout=timeout)
        except RuntimeError as error:
            if (ended := self._ended()) is None:
                raise
            raise ended from error

    def _dequeue_in_slices(self, timeout: float | None) -> Any:
        left = timeout
        while True:
            piece = self._SLICE_S if left is None else min(self._SLICE_S, max(left, 0.0))
            try:
                return self._dequeue(timeout=piece)
            except TimeoutError:
                if (ended := self._ended()) is not None:
                    raise ended from None
                if left is not None:
                    left -= piece
                    if left <= 0:
                        raise

    def _ended(self) -> RuntimeError | None:
        executor = self._executor()
        if executor is not None and executor.failure is not None:
            return RuntimeError(f"Executor failed: {executor.failure}")
        if executor is None or executor.shutting_down:
            return RuntimeError("The executor was shut down while a call was waiting for answers.")
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
