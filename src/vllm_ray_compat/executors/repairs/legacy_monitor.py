"""Nobody notices that a worker died until the next step, and the engine is never told."""

from __future__ import annotations

import sys
from typing import Any

from vllm_ray_compat.executors.failure import Failure
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend

#: Seconds in which every worker has to answer a health check.
_HEALTH_S = 10.0


class _Watched(Failure, Mixin):
    """Workers are asked again and again, and the engine fails when one is dead."""

    def _init_executor(self) -> None:
        super()._init_executor()
        from vllm_ray_compat.executors.monitor import PingMonitor

        self._monitor = PingMonitor(self, dict(enumerate(self.workers)))

    def on_worker_death(self, ranks: list[int], cause: str) -> None:
        """Fail the engine; called by the monitor, in its thread."""
        self.note_failure(ranks, cause)
        try:
            self.shutdown()
        finally:
            self.tell_of_failure()

    def check_health(self) -> None:
        """Ask every worker; raises when one is dead, or does not answer within 10 s."""
        self.collective_rpc("check_health", timeout=_HEALTH_S)

    def collective_rpc(self, *args: Any, **kwargs: Any) -> Any:
        self.check_alive()
        vllms: Any = super()
        return vllms.collective_rpc(*args, **kwargs)

    def _execute_dag(self, *args: Any, **kwargs: Any) -> Any:
        self.check_alive()
        vllms: Any = super()
        return vllms._execute_dag(*args, **kwargs)

    def shutdown(self) -> None:
        monitor = self.__dict__.pop("_monitor", None)
        if sys.is_finalizing():
            return  # collected at the interpreter's end: Ray is gone, and the thread with it
        if monitor is not None:
            monitor.silence()  # workers that are ended on purpose are no failure
        vllms: Any = super()
        vllms.shutdown()
        if monitor is not None:
            monitor.stop()


REPAIR = Repair(
    name="legacy-monitor",
    defects=("L-8",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.33.0",
    reports=("https://github.com/vllm-project/vllm/issues/16259",),
    symptom="A worker that dies while the engine is idle is not noticed, and health checks go on "
    "to say that all is well.",
    effect="The engine fails within about a second of a worker's death, check_health() asks the "
    "workers, and the callback for failures is called.",
    executor=_Watched,
)
