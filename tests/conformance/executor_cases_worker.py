"""A worker that dies while it loads the model; on the workers' PYTHONPATH in test_executors.py."""

from __future__ import annotations

import os
import signal
from typing import Any

from vllm_ray_compat.platforms.cpu_worker import RayCpuWorker


class DyingWorker(RayCpuWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().load_model(*args, **kwargs)
