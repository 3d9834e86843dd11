"""What a Compiled Graph executor holds outside its own process, and how it is given back.

For this package's own executor and, as a repair, for vLLM's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

import ray

from vllm_ray_compat.executors import ray_cluster
from vllm_ray_compat.executors.monitor import PingMonitor
from vllm_ray_compat.executors.segments import Segments
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)

#: Seconds the graph gets to stop before the actors are killed all the same.
_TEARDOWN_S = 0.8


class Resources:
    """What an executor holds outside its process; released once."""

    def __init__(self) -> None:
        self.group: ray_cluster.Group | None = None
        self.actors: list[Any] = []
        self.graph: Any = None
        self.monitor: PingMonitor | None = None
        self.local_pids: list[int] = []
        self.segments = Segments()
        self._lock = threading.Lock()
        self._released = False

    def release(self, *, graceful: bool = True) -> None:
        """Stop the graph, end the workers, remove a placement group of ours. Idempotent.

        Not *graceful*: a worker is dead already, and the graph need not be waited for.
        """
        with self._lock:
            if self._released:
                return
            self._released = True
        if self.monitor is not None:
            self.monitor.silence()
        self.segments.note(self.local_pids)
        if self.graph is not None:
            # It waits for its workers, and one of them may be frozen.
            thread = threading.Thread(target=self._tear_down, args=[self.graph], daemon=True)
            thread.start()
            if graceful:
                thread.join(_TEARDOWN_S)
        for actor in self.actors:
            try:
                ray.kill(actor)
            except Exception as error:  # Ray may be gone already; the others still need it
                _logger.debug("An actor could not be killed: %s", error)
        self.actors, self.graph = [], None
        if self.group is not None:
            self.group.remove()
        if self.monitor is not None:
            self.monitor.stop()  # this late, because its current wait is over now, or nearly

    def free_segments(self) -> None:
        """Remove what killed workers left."""
        self.segments.free()

    @staticmethod
    def _tear_down(graph: Any) -> None:
        with contextlib.suppress(Exception):  # the actors are killed next in any case
            graph.teardown()
