"""Workers with which no engine starts; on the workers' PYTHONPATH in tests of that."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
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


class RobbedWorker(RayCpuWorker):
    """Whenever this process has chosen a port, somebody else binds it, if that is possible."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        from vllm.distributed.device_communicators import shm_broadcast

        choose = shm_broadcast.get_open_port
        self.others: list[socket.socket] = []
        others = self.others

        def robbed() -> int:
            port = int(choose())
            other = socket.socket()
            others.append(other)
            with contextlib.suppress(OSError):
                other.bind(("", port))
                other.listen()
            return port

        shm_broadcast.get_open_port = robbed
        super().load_model(*args, **kwargs)
