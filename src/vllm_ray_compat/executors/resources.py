"""What a Ray executor holds outside its own process, and how it is given back."""

from __future__ import annotations

import logging
import threading
from typing import Any

import ray

from vllm_ray_compat.executors import ray_cluster
from vllm_ray_compat.executors.monitor import Monitor
from vllm_ray_compat.executors.segments import Segments
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)


class Resources:
    """Actors, placement group, shared memory and monitor; released once, by whoever comes first.

    An object of its own, so that the executor's finalizer does not keep the executor alive.
    """

    def __init__(self) -> None:
        self.group: ray_cluster.Group | None = None
        #: In the order of ranks.
        self.actors: list[Any] = []
        self.monitor: Monitor | None = None
        #: Processes of the workers on this node.
        self.local_pids: list[int] = []
        self.segments = Segments()
        self._lock = threading.Lock()
        self._released = False

    def release(self, *, graceful: bool = True) -> None:
        """End the workers and remove a placement group of ours. Idempotent, from any thread.

        Not *graceful*: a worker is dead already, and the others need not be waited for.
        """
        with self._lock:
            if self._released:
                return
            self._released = True
        if self.monitor is not None:
            self.monitor.silence()
        self.segments.note(self.local_pids)
        self.stop_work(graceful=graceful)
        actors, self.actors = self.actors, []
        for actor in actors:
            try:
                ray.kill(actor)
            except Exception as error:  # Ray may be gone already; the others still need it
                _logger.debug("An actor could not be killed: %s", error)
        self.close()
        if self.group is not None:
            self.group.remove()
        if self.monitor is not None:
            self.monitor.stop()  # this late, because its current wait is over now, or nearly

    def stop_work(self, *, graceful: bool) -> None:
        """Have the workers end by themselves, for a moment; they are killed next. Never raises."""

    def close(self) -> None:
        """Give up what leads to the workers, which are dead now."""

    def free_segments(self) -> None:
        """Remove what killed workers left."""
        self.segments.free()
