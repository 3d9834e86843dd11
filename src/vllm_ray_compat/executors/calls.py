"""Calls of all workers through message queues: which answer belongs to which call.

``MultiprocExecutor`` (vLLM 0.15 to 0.33) stops reading at the first rank that fails or is late,
and leaves the answers of the others in their queues: every later call that waits for one of those
ranks gets the answer of the call before. Here an answer is matched with its call by counting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol


class Queue(Protocol):
    """A response queue of vLLM."""

    def dequeue(self, timeout: float | None = None, **options: Any) -> Any:
        """Return the next ``(status, result)``; raises ``TimeoutError``."""


class Answers:
    """The answers of one worker, in the order in which it was called."""

    def __init__(self, queue: Queue) -> None:
        self._dequeue = queue.dequeue
        self._called = 0
        self._read = 0

    def expect(self) -> int:
        """Note that the worker was called and will answer; returns the number of the call."""
        self._called += 1
        return self._called

    def receive(self, call: int, timeout: float | None) -> Any:
        """Return the answer to *call*; those to earlier calls, which nobody wants now, are dropped.

        Raises:
            TimeoutError: it did not come within *timeout* seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            answer = self._dequeue(timeout=None if end is None else _left(end))
            self._read += 1
            if self._read == call:
                return answer


class Call(Future[Any]):
    """A call under way, and the future of its result. Resolved in the thread that asks for it."""

    def __init__(
        self,
        what: str,
        asked: Sequence[Answers],
        success: Any,
        finish: Callable[[list[Any]], Any],
        timeout: float | None,
        ahead: deque[Call],
    ) -> None:
        """Note that *asked* were called just now.

        Args:
            what: the method, for messages.
            asked: the workers that answer.
            success: the status of an answer that is a result.
            finish: turns the results, in the order of *asked*, into the call's.
            timeout: seconds from now until the call fails.
            ahead: the calls that wait, oldest first; this one is added, and leaves when resolved.
        """
        super().__init__()
        self._what = what
        self._expected = [(answers, answers.expect()) for answers in asked]
        self._results: list[Any] = []
        self._success = success
        self._finish = finish
        self._end = None if timeout is None else time.monotonic() + timeout
        self._ahead = ahead
        ahead.append(self)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result.

        Workers answer in order, so the calls ahead are resolved first.

        Raises:
            TimeoutError: the call's own time is over, or *timeout* seconds are; after the latter
                it can be asked again.
            RuntimeError: a worker raised.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            self._ahead[0]._resolve(end)
            self._ahead.popleft()
        return super().result()

    def _resolve(self, end: float | None) -> None:
        """Wait for the answers, at most until *end*; raises ``TimeoutError`` then."""
        limit = self._end
        is_own_limit = True
        if end is not None and (limit is None or end < limit):
            limit, is_own_limit = end, False
        try:
            _collect(self._what, self._expected, self._success, limit, self._results)
            self.set_result(self._finish(self._results))
        except TimeoutError as error:
            if not is_own_limit:
                raise  # the caller's patience is over, not the call's time
            self.set_exception(_late(self._what, error))
        except Exception as error:  # belongs to who asks this future, maybe for another one
            self.set_exception(error)


def call_and_wait(
    what: str,
    asked: Sequence[Answers],
    success: Any,
    finish: Callable[[list[Any]], Any],
    timeout: float | None,
    ahead: deque[Call],
) -> Any:
    """Do what ``Call(…).result()`` does, without the cost of a future.

    A future's locks take as long as a tenth of a whole round trip through shared memory.

    Args:
        what: as for :class:`Call`, like the others.
        asked: the workers that were called just now.
        success: the status of an answer that is a result.
        finish: turns the results into the call's.
        timeout: seconds from now until the call fails.
        ahead: the calls that wait; they are resolved first.

    Raises:
        TimeoutError: the call's time is over.
        RuntimeError: a worker raised.
    """
    end = None if timeout is None else time.monotonic() + timeout
    expected = [(answers, answers.expect()) for answers in asked]
    results: list[Any] = []
    try:
        while ahead:
            ahead[0]._resolve(end)
            ahead.popleft()
        _collect(what, expected, success, end, results)
    except TimeoutError as error:
        raise _late(what, error) from error
    return finish(results)


def _collect(
    what: str,
    expected: list[tuple[Answers, int]],
    success: Any,
    end: float | None,
    results: list[Any],
) -> None:
    """Move the answers of *expected* to *results*; what is still expected can be waited for again.

    Raises:
        TimeoutError: *end* came first.
        RuntimeError: a worker raised.
    """
    while expected:
        answers, call = expected[0]
        status, result = answers.receive(call, None if end is None else _left(end))
        del expected[0]
        if status != success:
            raise RuntimeError(f"{what} failed in a worker: {result} (its log has the traceback)")
        results.append(result)


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())


def _late(what: str, cause: TimeoutError) -> TimeoutError:
    late = TimeoutError(f"{what} did not finish in all workers in time.")
    late.__cause__ = cause
    return late
