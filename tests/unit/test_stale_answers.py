"""Which answer belongs to which call, without vLLM: its ``collective_rpc`` is played here."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
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


class Broadcast:
    def enqueue(self, message: tuple[Any, ...], timeout: float | None = None) -> None:
        if message[0] == "unsendable":
            raise TypeError(message)


class Lazy(Future[Any]):
    def __init__(self, get: Callable[[], Any]) -> None:
        super().__init__()
        self.get = get

    def result(self, timeout: float | None = None) -> Any:
        return self.get()


class Vllms:
    """As ``MultiprocExecutor``: it stops reading at the first rank that failed or is late."""

    def __init__(self) -> None:
        self.rpc_broadcast_mq: Any = Broadcast()
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
        rank = None if kv_output_aggregator else unique_reply_rank
        self.rpc_broadcast_mq.enqueue((method, args, kwargs, rank))
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


@pytest.fixture(autouse=True)
def statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for the one name that the repair takes from vLLM."""
    module = ModuleType("multiproc_executor")
    module.WorkerProc = SimpleNamespace(  # type: ignore[attr-defined]
        ResponseStatus=SimpleNamespace(SUCCESS="done")
    )
    monkeypatch.setitem(sys.modules, "vllm.v1.executor.multiproc_executor", module)


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


def test_calls_that_one_rank_answers_after_one_that_was_late() -> None:
    """Both are of rank 1 alone, so nothing but the time tells whose answer it is."""
    executor = Repaired()
    with pytest.raises(TimeoutError):
        executor.collective_rpc("slow", timeout=0, unique_reply_rank=1)
    answer(executor, ("done", "slow"), ("done", "next"), ranks=(1,))
    assert executor.collective_rpc("next", unique_reply_rank=1) == "next"


def test_a_late_answer_is_waited_for_within_the_time_of_the_next_call() -> None:
    executor = Repaired()
    with pytest.raises(TimeoutError):
        executor.collective_rpc("slow", timeout=0)
    with pytest.raises(TimeoutError):
        executor.collective_rpc("next", timeout=0)
    answer(executor, ("done", "slow"), ("done", "next"), ("done", "last"))
    assert executor.collective_rpc("last") == ["last", "last"]


def test_futures_behind_one_that_fails_get_their_own_answers() -> None:
    executor = Repaired()
    first, second, third = (executor.collective_rpc("step", non_block=True) for _ in range(3))
    answer(executor, ("failed", "1"), ("done", "2"), ("done", "3"))
    with pytest.raises(RuntimeError, match="1"):
        first.result()
    assert second.result() == ["2", "2"]
    assert third.result() == ["3", "3"]


def test_the_last_rank_that_fails_leaves_nothing_behind() -> None:
    executor = Repaired()
    answer(executor, ("done", "1"), ranks=(0,))
    answer(executor, ("failed", "1"), ranks=(1,))
    with pytest.raises(RuntimeError):
        executor.collective_rpc("fail")
    answer(executor, ("done", "2"))
    assert executor.collective_rpc("next") == ["2", "2"]


def test_an_interrupt_between_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Repaired()
    answer(executor, ("done", "1"), ("done", "2"))
    queue = executor.response_mqs[0]
    executor.collective_rpc("step", non_block=True)
    assert queue.dequeue() == ("done", "1")  # and whoever read it did not go on
    assert executor.collective_rpc("next") == ["2", "2"]


def test_any_sequence_of_calls_gets_its_own_answers() -> None:
    """Random calls of all ranks or one, that succeed, fail or are late at any rank."""
    draw = random.Random(0)
    for _ in range(300):
        executor = Repaired()
        for number in range(12):
            rank = draw.choice([None, None, 0, 1])
            asked = (0, 1) if rank is None else (rank,)
            kinds = {one: draw.choice(["done", "done", "failed", "late"]) for one in asked}
            for one in asked:
                if kinds[one] != "late":
                    executor.response_mqs[one].answers.append((kinds[one], str(number)))
            timeout = 0 if "late" in kinds.values() else None
            stopped = next((kinds[one] for one in asked if kinds[one] != "done"), None)
            if stopped is not None:
                expected = TimeoutError if stopped == "late" else RuntimeError
                text = None if stopped == "late" else f"^{number}$"
                with pytest.raises(expected, match=text):
                    executor.collective_rpc("x", timeout, unique_reply_rank=rank)
            else:
                found = executor.collective_rpc("x", timeout, unique_reply_rank=rank)
                assert found == ([str(number)] * 2 if rank is None else str(number))
            for one in asked:  # a late one comes in the end
                if kinds[one] == "late":
                    executor.response_mqs[one].answers.append(("done", f"late {number}"))


def test_the_queues_are_reached_and_shut_down() -> None:
    executor = Repaired()
    queues = [queue.behind for queue in executor.response_mqs]
    assert executor.response_mqs[0].is_shut is False
    executor.shutdown()
    assert executor.response_mqs == []
    assert all(queue.is_shut for queue in queues)
