"""Every call gets its own answers, whatever became of the calls before it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from vllm_ray_compat.executors.calls import Answers, Call, call_and_wait


class Worker:
    """Answers what it is told to, in order; with nothing to say it is late."""

    def __init__(self) -> None:
        self.said: deque[tuple[str, Any]] = deque()

    def says(self, result: Any, status: str = "ok") -> None:
        self.said.append((status, result))

    def dequeue(self, timeout: float | None = None, **options: Any) -> Any:
        if not self.said:
            assert timeout is not None, "would wait for ever"
            raise TimeoutError
        return self.said.popleft()


class Bench:
    def __init__(self) -> None:
        self.workers = [Worker(), Worker()]
        self.answers = [Answers(worker) for worker in self.workers]
        self.ahead: deque[Call] = deque()

    def call(self, rank: int | None = None, timeout: float | None = None) -> Call:
        asked = self.answers if rank is None else [self.answers[rank]]
        return Call("method", asked, "ok", list, timeout, self.ahead)

    def wait(self, timeout: float | None = None) -> Any:
        return call_and_wait("method", self.answers, "ok", list, timeout, self.ahead)

    def all_say(self, *results: Any) -> None:
        for worker, result in zip(self.workers, results, strict=True):
            worker.says(result)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_results_come_by_rank(bench: Bench) -> None:
    call = bench.call()
    bench.all_say("a", "b")
    assert call.result() == ["a", "b"]
    assert not bench.ahead


def test_after_an_error_the_next_call_gets_its_own_answers(bench: Bench) -> None:
    """vLLM's executor returns ["a", "stale"] here: rank 1's answer to the failed call."""
    failed = bench.call()
    bench.workers[0].says("broken", status="error")
    bench.workers[1].says("stale")
    with pytest.raises(RuntimeError, match="method failed in a worker: broken"):
        failed.result()
    call = bench.call()
    bench.all_say("a", "b")
    assert call.result() == ["a", "b"]


def test_after_a_time_out_late_answers_are_dropped(bench: Bench) -> None:
    late = bench.call(timeout=0.0)
    with pytest.raises(TimeoutError, match="method did not finish"):
        late.result()
    call = bench.call()
    bench.all_say("late", "late")
    bench.all_say("a", "b")
    assert call.result() == ["a", "b"]


def test_a_queue_that_gives_up_early_is_late_all_the_same(bench: Bench) -> None:
    """Clocks of queue and call differ by a fraction of a millisecond."""
    call = bench.call(timeout=1.0)  # the queue of these tests never waits
    with pytest.raises(TimeoutError, match="method did not finish"):
        call.result()
    assert call.done()
    assert not bench.ahead


def test_who_was_not_asked_owes_no_answer(bench: Bench) -> None:
    one, both = bench.call(rank=1), bench.call()
    bench.workers[1].says("one")
    bench.all_say("a", "b")
    assert both.result() == ["a", "b"]
    assert one.result() == ["one"], "resolved on the way"


def test_an_error_ahead_is_raised_by_its_own_future(bench: Bench) -> None:
    first, second = bench.call(), bench.call()
    bench.workers[0].says("broken", status="error")
    bench.workers[1].says("stale")
    bench.all_say("a", "b")
    assert second.result() == ["a", "b"]
    with pytest.raises(RuntimeError, match="broken"):
        first.result()


def test_an_impatient_caller_can_ask_again(bench: Bench) -> None:
    call = bench.call()
    bench.workers[0].says("a")
    with pytest.raises(TimeoutError):
        call.result(timeout=0.01)
    assert not call.done()
    bench.workers[1].says("b")
    assert call.result() == ["a", "b"]


def test_a_dead_executor_ends_every_call(bench: Bench) -> None:
    class Dead(Worker):
        def dequeue(self, timeout: float | None = None, **options: Any) -> Any:
            raise RuntimeError("Executor failed")

    bench.answers[0] = Answers(Dead())
    first, second = bench.call(), bench.call()
    for call in (second, first):
        with pytest.raises(RuntimeError, match="Executor failed"):
            call.result()


def test_what_the_finish_raises_is_the_result(bench: Bench) -> None:
    def finish(_: list[Any]) -> None:
        raise ValueError("cannot aggregate")

    call = Call("method", bench.answers, "ok", finish, None, bench.ahead)
    bench.all_say("a", "b")
    with pytest.raises(ValueError, match="cannot aggregate"):
        call.result()


class TestWaitingWithoutAFuture:
    def test_results_come_by_rank(self, bench: Bench) -> None:
        bench.all_say("a", "b")
        assert bench.wait() == ["a", "b"]
        assert not bench.ahead

    def test_calls_ahead_are_resolved_first(self, bench: Bench) -> None:
        first = bench.call()
        bench.all_say("first", "first")
        bench.all_say("a", "b")
        assert bench.wait() == ["a", "b"]
        assert first.done()
        assert first.result() == ["first", "first"]

    def test_an_error_ahead_is_not_this_calls(self, bench: Bench) -> None:
        first = bench.call()
        bench.workers[0].says("broken", status="error")
        bench.workers[1].says("stale")
        bench.all_say("a", "b")
        assert bench.wait() == ["a", "b"]
        with pytest.raises(RuntimeError, match="broken"):
            first.result()

    def test_after_an_error_the_next_call_gets_its_own_answers(self, bench: Bench) -> None:
        bench.workers[0].says("broken", status="error")
        bench.workers[1].says("stale")
        with pytest.raises(RuntimeError, match="method failed in a worker: broken"):
            bench.wait()
        bench.all_say("a", "b")
        assert bench.wait() == ["a", "b"]

    def test_after_a_time_out_late_answers_are_dropped(self, bench: Bench) -> None:
        with pytest.raises(TimeoutError, match="method did not finish"):
            bench.wait(timeout=0.0)
        bench.all_say("late", "late")
        bench.all_say("a", "b")
        assert bench.wait() == ["a", "b"]

    def test_its_time_is_over_though_a_call_ahead_has_more(self, bench: Bench) -> None:
        first = bench.call(timeout=1000.0)
        with pytest.raises(TimeoutError, match="method did not finish"):
            bench.wait(timeout=0.0)
        assert not first.done(), "it can still be asked"
        bench.all_say("first", "first")
        bench.all_say("late", "late")
        bench.all_say("a", "b")
        assert first.result() == ["first", "first"]
        assert bench.wait() == ["a", "b"]
