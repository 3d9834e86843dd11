"""After a call that failed or was late, V2 takes its remaining answers for those of the next."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _Order:
    """The calls that are not answered yet, oldest first: vLLM reads their answers in this order.

    It gives a call up at the first rank that fails or is late. What the others answer to it comes
    all the same, and is stale then.
    """

    __slots__ = ("calls", "last", "next", "stale", "success")

    def __init__(self, ranks: int, success: Any) -> None:
        self.success = success  # the status of an answer that is a result
        self.calls: deque[int | None] = deque()  # the rank that answers; None: all of them do
        self.next = 0  # the rank whose answer to the oldest call is read next, where all answer
        self.last = ranks - 1
        self.stale = [0] * ranks

    def give_up(self) -> None:
        """Take the answers to the oldest call that were not read for stale."""
        rank = self.calls.popleft()
        for one in range(self.next, self.last + 1) if rank is None else (rank,):
            self.stale[one] += 1
        self.next = 0


class _Queue:
    """Stands before a message queue of vLLM; what it does not do itself is the queue's."""

    __slots__ = ("_order", "behind")

    def __init__(self, behind: Any, order: _Order) -> None:
        self.behind = behind
        self._order = order

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


class _Broadcast(_Queue):
    """Notes each call that was sent, and who will answer."""

    __slots__ = ("_enqueue",)

    def __init__(self, behind: Any, order: _Order) -> None:
        super().__init__(behind, order)
        self._enqueue = behind.enqueue

    def enqueue(
        self, message: tuple[Any, Any, Any, int | None], timeout: float | None = None
    ) -> None:
        """Send ``(method, args, kwargs, rank that answers)``."""
        self._enqueue(message, timeout)
        # While the workers are at it: this costs a step nothing.
        self._order.calls.append(message[3])


class _Response(_Queue):
    """Returns the answers of one rank but the stale ones. In every step, so it does little."""

    __slots__ = ("_dequeue", "_rank")

    def __init__(self, behind: Any, order: _Order, rank: int) -> None:
        super().__init__(behind, order)
        self._dequeue = behind.dequeue
        self._rank = rank

    def dequeue(self, timeout: float | None = None, **options: Any) -> Any:
        """Return the rank's answer to the oldest call.

        Raises:
            TimeoutError: it did not come within *timeout* seconds.
        """
        order, rank = self._order, self._rank
        calls = order.calls
        while (asked := calls[0]) != rank and (asked is not None or order.next != rank):
            order.give_up()  # something interrupted it between two ranks
        try:
            if order.stale[rank]:
                timeout = self._drop_stale(timeout)
            answer = self._dequeue(timeout=timeout, **options)
        except BaseException:
            order.give_up()
            raise
        if asked is None and rank < order.last:
            order.next = rank + 1
            if answer[0] != order.success:
                order.give_up()
        else:
            order.next = 0
            calls.popleft()
        return answer

    def _drop_stale(self, timeout: float | None) -> float | None:
        """Read what nobody wants; returns what is left of *timeout*."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._order.stale[self._rank]:
                return left
            self._dequeue(timeout=left)
            self._order.stale[self._rank] -= 1


class _Counted(Mixin):
    """Answers are matched with calls by their order."""

    rpc_broadcast_mq: Any
    response_mqs: Any

    def _post_init_executor(self) -> None:
        from vllm.v1.executor.multiproc_executor import WorkerProc

        # The queues are there, and nothing was asked yet.
        order = _Order(len(self.response_mqs), WorkerProc.ResponseStatus.SUCCESS)
        self.rpc_broadcast_mq = _Broadcast(self.rpc_broadcast_mq, order)
        self.response_mqs = [
            _Response(queue, order, rank) for rank, queue in enumerate(self.response_mqs)
        ]
        super()._post_init_executor()


REPAIR = Repair(
    name="v2-stale-answers",
    defects=(),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in=None,
    reports=(),
    symptom=(
        "After a collective_rpc that raised or timed out, the next one returns answers of the "
        "one before."
    ),
    effect="Each call gets its own answers; those that nobody waits for any more are dropped.",
    executor=_Counted,
)
