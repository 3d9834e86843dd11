"""A reader of a response queue is never left waiting, and learns why."""

from __future__ import annotations

import time
from typing import Any

import pytest

from vllm_ray_compat.executors.response_queue import ResponseQueue


class Executor:
    shutting_down = False
    failure: str | None = None


class Queue:
    """vLLM's queue, as far as it is used: an answer, a time-out, or the wake-up at the end."""

    name = "of vLLM"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float | None, dict[str, Any]]] = []

    def dequeue(self, timeout: float | None = None, **options: Any) -> Any:
        self.asked.append((timeout, options))
        answer = self.answers.pop(0) if self.answers else TimeoutError()
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.mark.parametrize("is_remote", [False, True])
def test_answers_and_options_pass_through(is_remote: bool) -> None:
    inner, executor = Queue("answer"), Executor()
    queue = ResponseQueue(inner, executor, is_remote=is_remote, options={"cancel": None})
    assert queue.dequeue(timeout=0.25) == "answer"
    assert inner.asked == [(0.25, {"cancel": None})]
    assert queue.name == "of vLLM"


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_time_out_is_one(is_remote: bool) -> None:
    executor = Executor()
    with pytest.raises(TimeoutError):
        ResponseQueue(Queue(), executor, is_remote=is_remote).dequeue(timeout=0.1)


def test_a_remote_queue_waits_as_long_as_asked() -> None:
    inner, executor = Queue(), Executor()
    with pytest.raises(TimeoutError):
        ResponseQueue(inner, executor, is_remote=True).dequeue(timeout=1.2)
    assert [round(t or 0, 3) for t, _ in inner.asked] == [0.5, 0.5, 0.2]


def test_a_late_answer_from_another_node_is_not_lost() -> None:
    executor = Executor()
    queue = ResponseQueue(Queue(TimeoutError(), TimeoutError(), "late"), executor, is_remote=True)
    assert queue.dequeue() == "late"


def test_the_dead_worker_is_named() -> None:
    executor = Executor()
    executor.failure = "the worker of rank 1 died"
    for inner, is_remote in [(Queue(RuntimeError("cancelled")), False), (Queue(), True)]:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="the worker of rank 1 died"):
            ResponseQueue(inner, executor, is_remote=is_remote).dequeue()
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_shutdown_ends_the_wait(is_remote: bool) -> None:
    executor = Executor()
    executor.shutting_down = True
    inner = Queue() if is_remote else Queue(RuntimeError("cancelled"))
    with pytest.raises(RuntimeError, match="was shut down"):
        ResponseQueue(inner, executor, is_remote=is_remote).dequeue()


def test_an_error_of_the_queue_itself_stays() -> None:
    executor = Executor()
    with pytest.raises(RuntimeError, match="its own"):
        ResponseQueue(Queue(RuntimeError("its own")), executor, is_remote=False).dequeue()
