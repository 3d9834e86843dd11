"""After a call that failed or was late, V2 takes its remaining answers for those of the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _Answer:
    """The response queue of a rank, as one call sees it. Made in every step, so it is small."""

    __slots__ = ("_answers", "_call", "_queue")

    def __init__(self, answers: Any, queue: Any, call: _Call) -> None:
        self._answers = answers
        self._queue = queue
        self._call = call

    def dequeue(self, timeout: float | None = None, **_: Any) -> Any:
        """Return the answer to this call, and no earlier one."""
        return self._answers.receive(self._call.numbers[self._answers], timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Call:
    """What one call sees in the place of the list of all response queues."""

    __slots__ = ("_answers", "_queues", "numbers")

    def __init__(self, answers: list[Any], queues: list[Any]) -> None:
        self._answers = answers
        self._queues = queues
        self.numbers: dict[Any, int] = {}

    def is_sent_to(self, ranks: list[Any]) -> None:
        """Note that these will answer."""
        self.numbers = {answers: answers.expect() for answers in ranks}

    def __getitem__(self, rank: int) -> _Answer:
        return _Answer(self._answers[rank], self._queues[rank], self)

    def __iter__(self) -> Iterator[_Answer]:
        return (self[rank] for rank in range(len(self._answers)))


class _Counted(Mixin):
    """Answers are matched with calls by counting."""

    response_mqs: Any

    def _init_executor(self) -> None:
        self._raycompat_answers: list[Any] = []
        super()._init_executor()

    def _post_init_executor(self) -> None:
        from vllm_ray_compat.executors.calls import Answers

        # The queues are there, and nothing was asked yet.
        self._raycompat_answers = [Answers(queue) for queue in self.response_mqs]
        super()._post_init_executor()

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
        unique_reply_rank: int | None = None,
        **aggregators: Any,
    ) -> Any:
        """Call *method* on every worker, as ``MultiprocExecutor.collective_rpc`` does."""
        answers, queues = self._raycompat_answers, self.response_mqs
        if len(answers) != len(queues):  # the executor has failed or was shut down just now
            answers = queues = []
        call = _Call(answers, queues)
        self.response_mqs = call
        try:
            # Without waiting: what is raised here was not sent, and nobody will answer.
            future = super().collective_rpc(
                method, timeout, args, kwargs, True, unique_reply_rank, **aggregators
            )
        finally:
            if self.response_mqs is call:  # and not shut down in the meantime
                self.response_mqs = queues
        if unique_reply_rank is None or any(aggregators.values()):
            call.is_sent_to(answers)
        else:
            call.is_sent_to([answers[unique_reply_rank]])
        return future if non_block else future.result()

    def shutdown(self) -> None:
        """Let go of the queues, too."""
        super().shutdown()
        self._raycompat_answers = []


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
