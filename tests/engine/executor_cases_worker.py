"""Workers with which no engine starts; on the workers' PYTHONPATH in tests of that."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from vllm_ray_compat.platforms.cpu_worker import RayCpuWorker


class DyingWorker(RayCpuWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().load_model(*args, **kwargs)


class SleepingWorker(RayCpuWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        if self.rank == 1:
            time.sleep(3600)
        super().load_model(*args, **kwargs)
