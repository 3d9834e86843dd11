"""Where vLLM's workers run, which nothing of vLLM's tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Place = tuple[str, int]


def asking_where() -> Callable[[Any], Place]:
    """Return a function that tells the node and the process of the worker it is sent to.

    It travels by value, because it is made in here: the worker's node need not have this package.
    """

    def where(_worker: Any) -> Place:
        import os

        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    return where


def on_this_node(places: Iterable[Place]) -> list[int]:
    """Return the processes in *places* that run on this node."""
    here, _ = asking_where()(None)
    return [pid for node, pid in places if node == here]
