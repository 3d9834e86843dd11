"""A message queue in a cycle, collected: with the real ZeroMQ, in a process that may hang."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="no vLLM here")

SCRIPT = """
import gc, sys, zmq

class Queue:
    def __init__(self):
        context = zmq.Context()
        self.local_socket = context.socket(zmq.SUB)
        self._spin_condition = type("Condition", (), {})()
        self._spin_condition.write_cancel_socket = context.socket(zmq.PAIR)
        self._spin_condition.write_cancel_socket.bind("inproc://cancel")
        self._spin_condition.read_cancel_socket = context.socket(zmq.PAIR)
        self._spin_condition.read_cancel_socket.connect("inproc://cancel")
        self._spin_condition.write_cancel_socket.send(b"")  # as shutdown() does
        self.context = context
        self.cycle = self

gc.disable()
queue = Queue()
if sys.argv[1] == "attached":
    from vllm_ray_compat.executors.queue_end import attach
    attach(queue)
sockets = [queue.local_socket, *vars(queue._spin_condition).values()]
del queue
if sys.argv[1] == "bare":
    # What the collector may choose to do: the context first, and its sockets unknown to it.
    sockets[0].context._sockets.clear()
    context = sockets[0].context
    print("collecting", flush=True)
    context.__del__()
gc.collect()
assert all(socket.closed for socket in sockets)
print("ended")
"""


def run(how: str, timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT), how],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_the_sockets_are_closed_before_the_context() -> None:
    done = run("attached", 60)
    assert done.stdout.strip() == "ended", done.stderr


def test_without_it_a_collector_can_wait_for_ever() -> None:
    """The order that it may happen to choose, forced: proves that the danger is real."""
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run("bare", 8)
    assert b"collecting" in (caught.value.stdout or b"")
