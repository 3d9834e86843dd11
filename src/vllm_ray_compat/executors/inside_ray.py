"""Whether this process is one that Ray has started for an actor or a task."""

from __future__ import annotations

import sys
from typing import Any


def ray_of_this_worker() -> Any | None:
    """Return the ``ray`` module in a worker process of Ray; None in a driver, and without Ray.

    Imports nothing, and asks nothing of a Ray this process is not connected to.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    # A client of Ray has a context without a worker: it is a driver, too.
    worker = getattr(ray.get_runtime_context(), "worker", None)
    return ray if getattr(worker, "mode", None) == ray.WORKER_MODE else None
