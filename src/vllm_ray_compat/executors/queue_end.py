"""How a message queue of vLLM ends: its sockets are closed before their context.

A queue has sockets and a ZeroMQ context, and no end of its own in older releases: both are left to
the garbage collector. When it finds them in one cycle, it may end the context first, which then
waits for the sockets, for ever, in whatever thread happened to collect. Later releases (0.32 among
them) close them when the queue is collected; here the others are made to do the same.
"""

from __future__ import annotations

import weakref
from typing import Any

import zmq
from vllm.distributed.device_communicators import shm_broadcast

#: What vLLM's own is called, where it has one.
_VLLMS = "_close_zmq"


def end_when_collected(*queues: Any) -> None:
    """Have *queues* close their sockets when they are collected, where vLLM does not.

    One that a repair stands before (``behind``) is meant itself.
    """
    if hasattr(shm_broadcast, _VLLMS):
        return
    for queue in queues:
        attach(getattr(queue, "behind", queue))


def attach(queue: Any) -> None:
    """Have *queue* close its sockets, and end their context, when it is collected.

    The finalizer holds the sockets and the context, so that they outlive the queue and can be
    ended in order; it does not hold the queue.
    """
    owners = [queue, getattr(queue, "_spin_condition", None)]  # the latter since 0.18
    values = [value for owner in owners if owner is not None for value in vars(owner).values()]
    sockets = [value for value in values if isinstance(value, zmq.Socket)]
    if sockets:
        weakref.finalize(queue, _close, sockets).atexit = False


def _close(sockets: list[zmq.Socket[Any]]) -> None:
    contexts = {id(socket.context): socket.context for socket in sockets}
    for socket in sockets:
        socket.close(linger=0)
    for context in contexts.values():
        context.term()
