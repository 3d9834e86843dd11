"""Which answer belongs to which call, without vLLM: its ``collective_rpc`` is played here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from vllm_ray_compat.executors.repairs.v2_stale_answers import REPAIR


class Queue:
    """A response queue; an answer that is not there yet is late."""

    def __init__(self) -> None:
        self.answers: deque[Any] = deque()
        self.is_shut = False

    def dequeue(self, timeout: float | None = None) -> Any:
        if not self.answers:
            raise TimeoutError
        return self.answers.popleft()

    def shutdown(self) -> None:
        self.is_shut = True


class Lazy(Future[Any]):
    def __init__(self, get: Callable[[], Any]) -> None:
        super().__init__()
        self.get = get

    def result(self, timeout: float | None = None) -> Any:
        return self.get()


class Vllms:
    """As ``MultiprocExecutor``: it stops reading at the first rank that failed or is late."""

    def __init__(self) -> None:
        self.response_mqs: Any = [Queue(), Queue()]
        self._post_init_executor()

    def _post_init_executor(self) -> None:
        pass

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
        non_block: bool = False,
        unique_reply_rank: int | None = None,
        kv_output_aggregator: Any = None,
    ) -> Any:
        if method == "unsendable":
            raise TypeError(method)
        rank = None if kv_output_aggregator else unique_reply_rank
        asked = self.response_mqs if rank is None else (self.response_mqs[rank],)

        def get() -> Any:
            found = []
            for queue in asked:
                status, result = queue.dequeue(timeout=timeout)
                if status == "failed":
                    raise RuntimeError(result)
                found.append(result)
            return found if rank is None else found[0]

        return Lazy(get) if non_block else get()

    def shutdown(self) -> None:
        for queue in self.response_mqs:
            queue.shutdown()
        self.response_mqs = []


class Repaired(REPAIR.executor, Vllms):  # type: ignore[misc, name-defined]
    pass


def answer(executor: Vllms, *answers: tuple[str, str], ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        executor.response_mqs[rank].answers.extend(answers)


@pytest.mark.parametrize(("kind", "is_right"), [(Repaired, True), (Vllms, False)])
def test_after_a_call_that_failed(kind: type[Vllms], is_right: bool) -> None:
    executor = kind()
    answer(executor, ("failed", "first"), ("done", "second"))
    with pytest.raises(RuntimeError, match="first"):
        executor.collective_rpc("fail")
    if is_right:
        assert executor.collective_rpc("next") == ["second", "second"]
    else:
        with pytest.raises(RuntimeError, match="first"):
            executor.collective_rpc("next")


@pytest.mark.parametrize(("kind", "found"), [(Repaired, "second"), (Vllms, "first")])
def test_after_a_call_that_was_late(kind: type[Vllms], found: str) -> None:
    executor = kind()
    with pytest.raises(TimeoutError):
        executor.collective_rpc("slow", timeout=0)
    answer(executor, ("done", "first"), ("done", "second"))
    assert executor.collective_rpc("next") == [found, found]


def test_one_rank_futures_and_what_was_not_sent() -> None:
    executor = Repaired()
    with pytest.raises(TypeError):
        executor.collective_rpc("unsendable")
    futures = [executor.collective_rpc("step", non_block=True) for _ in range(2)]
    one = executor.collective_rpc("one", non_block=True, unique_reply_rank=1)
    all_of_them = executor.collective_rpc(
        "kv", non_block=True, unique_reply_rank=1, kv_output_aggregator=object()
    )
    answer(executor, ("done", "a"), ("done", "b"))
    answer(executor, ("done", "c"), ranks=(1,))
    answer(executor, ("done", "d"))
    assert [future.result() for future in futures] == [["a", "a"], ["b", "b"]]
    assert one.result() == "c"
    assert all_of_them.result() == ["d", "d"]


def test_the_queues_are_vllms_again_and_are_shut_down() -> None:
    executor = Repaired()
    queues = list(executor.response_mqs)
    executor.collective_rpc("step", non_block=True)
    assert executor.response_mqs == queues
    executor.shutdown()
    assert executor.response_mqs == []
    assert all(queue.is_shut for queue in queues)
