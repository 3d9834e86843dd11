"""A worker that says where it is, for the tests of Ray Serve; on the workers' PYTHONPATH."""

from __future__ import annotations

import os
from typing import Any


class Where:
    """vLLM mixes this into its worker class (``worker_extension_cls``)."""

    rank: int

    def where(self) -> dict[str, Any]:
        import ray

        found: dict[str, Any] = {"rank": self.rank, "pid": os.getpid(), "group": None}
        if ray.is_initialized():
            group = ray.util.get_current_placement_group()
            found["group"] = group.id.hex() if group else None
            found["devices"] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return found
