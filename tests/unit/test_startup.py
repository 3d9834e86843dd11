"""Waiting at the start: the failure that explains the others, the deadline, an end that is kept."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from vllm_ray_compat.executors import startup
from vllm_ray_compat.executors.repairs.v2_queue_port import held_port
from vllm_ray_compat.executors.startup import Deadline, WorkerDiedError, WorkerStartError


class FakeRay:
    """References are names of results; those in *pending* are never done."""

    def __init__(self, results: dict[str, Any], *, pending: set[str] | None = None) -> None:
        self._results = results
        self._pending = pending or set()
        self.waits = 0

    def wait(self, refs: list[str], num_returns: int = 1, timeout: float = 0) -> Any:
        self.waits += 1
        done = [ref for ref in refs if ref not in self._pending][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref: str, timeout: float) -> Any:
        if isinstance(result := self._results[ref], BaseException):
            raise result
        return result


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda fake: monkeypatch.setattr(startup, "ray", fake)


def raised_by_worker(text: str) -> RayTaskError:
    return RayTaskError("start", "traceback", ValueError(text))


def test_results_by_rank(use: Any) -> None:
    use(FakeRay({"a": 1, "b": 2}))
    assert startup.collect({0: "a", 1: "b"}, "Loading", Deadline(10)) == {0: 1, 1: 2}


def test_results_are_in_the_order_of_ranks_whoever_answers_first(use: Any) -> None:
    class LastFirst(FakeRay):
        def wait(self, refs: list[str], num_returns: int = 1, timeout: float = 0) -> Any:
            return refs[-num_returns:], refs[:-num_returns]

    use(LastFirst({"a": 1, "b": 2, "c": 3}))
    found = startup.collect({0: "a", 1: "b", 2: "c"}, "Loading", Deadline(10))
    assert list(found.items()) == [(0, 1), (1, 2), (2, 3)]


def test_a_death_goes_before_what_others_say_about_it(use: Any) -> None:
    use(FakeRay({"a": raised_by_worker("Connection closed by peer"), "b": ActorDiedError()}))
    with pytest.raises(WorkerDiedError, match=r"rank 1 died.*Connection closed") as caught:
        startup.collect({0: "a", 1: "b"}, "Loading", Deadline(10))
    assert isinstance(caught.value.__cause__, ActorDiedError)


def test_what_a_worker_raised_is_the_cause(use: Any) -> None:
    use(FakeRay({"a": raised_by_worker("no such file"), "b": 1}, pending={"b"}))
    with pytest.raises(WorkerStartError, match="failed on rank 0: ValueError: no such file"):
        startup.collect({0: "a", 1: "b"}, "Loading", Deadline(10))


def test_the_deadline_names_who_is_late(use: Any) -> None:
    use(FakeRay({"a": 1, "b": 1}, pending={"b"}))
    with pytest.raises(WorkerStartError, match="Loading of rank 1 did not finish within 0 s"):
        startup.collect({0: "a", 1: "b"}, "Loading", Deadline(0))


class FakeSocket:
    def __init__(self, ready_after: int) -> None:
        self.polls_left = ready_after

    def poll(self, milliseconds: float) -> bool:
        assert milliseconds > 0
        self.polls_left -= 1
        return self.polls_left < 0

    def recv(self) -> bytes:
        return b"READY"

    def send(self, data: bytes) -> None:
        self.sent = data


class FakeQueue:
    """As vLLM's: one of the two sockets is None."""

    def __init__(self, socket: FakeSocket) -> None:
        self.local_socket: Any = None
        self.remote_socket: Any = socket

    def wait_until_ready(self) -> None:
        assert self.remote_socket.recv() == b"READY"
        self.remote_socket.send(b"READY")


def test_a_queue_that_gets_ready(use: Any) -> None:
    fake = FakeRay({"run": None}, pending={"run"})
    use(fake)
    end = FakeSocket(ready_after=2)
    queue = FakeQueue(end)
    startup.wait_until_ready(queue, {0: "run"}, Deadline(10))
    assert (queue.remote_socket, queue.local_socket) == (end, None)
    assert end.sent == b"READY"
    assert fake.waits == 2


@pytest.mark.parametrize(
    ("result", "text"), [(ActorDiedError(), "rank 0 died"), (None, "rank 0 ended before")]
)
def test_a_worker_that_ends_at_the_barrier(use: Any, result: Any, text: str) -> None:
    use(FakeRay({"run": result}))
    end = FakeSocket(ready_after=1000)
    queue = FakeQueue(end)
    with pytest.raises(WorkerStartError, match=text):
        startup.wait_until_ready(queue, {0: "run"}, Deadline(10))
    assert queue.remote_socket is end


def test_a_barrier_has_a_deadline(use: Any) -> None:
    use(FakeRay({"run": None}, pending={"run"}))
    with pytest.raises(WorkerStartError, match="barrier did not finish within 0 s"):
        startup.wait_until_ready(FakeQueue(FakeSocket(1000)), {0: "run"}, Deadline(0))


def test_a_held_port_is_nobody_elses_and_can_be_bound_by_zeromq() -> None:
    zmq = pytest.importorskip("zmq")
    port = held_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    with zmq.Context() as context, context.socket(zmq.XPUB) as mine:
        mine.bind(f"tcp://127.0.0.1:{port}")
        with context.socket(zmq.SUB) as reader:
            reader.setsockopt_string(zmq.SUBSCRIBE, "")
            reader.connect(f"tcp://127.0.0.1:{port}")
            assert mine.poll(10_000), "the reader's subscription"


def test_the_executors_timeout_is_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert startup.start_timeout_s() == 600
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "30")
    assert startup.start_timeout_s() == 30
