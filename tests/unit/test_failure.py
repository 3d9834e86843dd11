"""Who is told of a dead worker, and when."""

from __future__ import annotations

import logging

import pytest

from vllm_ray_compat.executors.failure import Failure


def test_a_healthy_executor_says_nothing() -> None:
    executor = Failure()
    executor.register_failure_callback(lambda: pytest.fail("nothing has failed"))
    executor.check_alive()
    assert not executor.is_failed


def test_the_callback_is_called_once_and_calls_fail(caplog: pytest.LogCaptureFixture) -> None:
    executor, told = Failure(), list[str]()
    executor.register_failure_callback(lambda: told.append("now"))
    with caplog.at_level(logging.ERROR):
        executor.note_failure([1, 3], "ActorDiedError: killed")
    assert told == []  # first the workers are ended, then the engine hears of it
    executor.tell_of_failure()
    executor.tell_of_failure()
    assert told == ["now"]
    assert "rank 1, 3 died (ActorDiedError: killed)" in caplog.text
    with pytest.raises(RuntimeError, match=r"rank 1, 3 died \(ActorDiedError: killed\)"):
        executor.check_alive()


def test_who_asks_late_is_told_at_once() -> None:
    executor, told = Failure(), list[str]()
    executor.note_failure([0], "its loop ended")
    executor.tell_of_failure()
    executor.register_failure_callback(lambda: told.append("now"))
    executor.tell_of_failure()
    assert told == ["now"]


def test_executors_do_not_share_what_happened() -> None:
    failed, healthy = Failure(), Failure()
    failed.note_failure([0], "its loop ended")
    healthy.check_alive()
