"""A clean end of V2 takes five seconds, and leaves its placement group and its memory."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.failure import Failure
from vllm_ray_compat.executors.repairs import groups, workers
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _Ended(Failure, Mixin):
    """What the start made is given back, and nobody waits for a watch that looks up seldom."""

    _raycompat_segments: Any = None

    def _init_executor(self) -> None:
        from vllm_ray_compat.executors import startup
        from vllm_ray_compat.executors.queue_end import end_when_collected
        from vllm_ray_compat.executors.segments import Segments

        self._raycompat_monitor: Any = None
        self._raycompat_pids: list[int] = []
        self._raycompat_segments = Segments()
        with groups.noted() as made:
            self._raycompat_groups = made
            super()._init_executor()
        end_when_collected(self.rpc_broadcast_mq, *self.response_mqs)
        places = self.collective_rpc(workers.asking_where(), timeout=startup.start_timeout_s())
        self._raycompat_pids = workers.on_this_node(places)
        # And again at the end; but a worker that has died can no longer be asked then.
        self._raycompat_segments.note(self._raycompat_pids)
        self._raycompat_segments.spare(self.rpc_broadcast_mq)

    def start_worker_monitor(self, inline: bool = False) -> None:  # noqa: ARG002
        """Watch the workers, looking for the end four times a second and not every five."""
        from vllm_ray_compat.executors.monitor import WorkerMonitor

        run_refs = {handle.rank: handle.run_ref for handle in self.ray_worker_handles}
        self._raycompat_monitor = WorkerMonitor(self, run_refs)

    def on_worker_death(self, ranks: list[int], cause: str) -> None:
        """Fail the engine; called by the monitor."""
        self.note_failure(ranks, cause)
        try:
            self.shutdown()
        finally:  # the engine has to hear of it, whatever the end met
            self.tell_of_failure()

    def _join_monitor_thread(self) -> None:
        if self._raycompat_monitor is not None:
            self._raycompat_monitor.stop()

    def shutdown(self) -> None:
        """End the workers and give everything back. Idempotent."""
        if self._raycompat_segments is None:  # before the start
            return
        self._raycompat_segments.note(self._raycompat_pids)
        super().shutdown()
        made, self._raycompat_groups = self._raycompat_groups, []
        groups.give_back(made, self.parallel_config)
        self._raycompat_segments.free()
        if (finalizer := getattr(self, "_finalizer", None)) is not None:
            # It holds the executor until the process ends, and has nothing left to do.
            finalizer.detach()


REPAIR = Repair(
    name="v2-shutdown",
    defects=("V2-6",),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in=None,
    reports=(),
    symptom=(
        "A clean end takes up to five seconds; the placement group, and on the workers' side "
        "shared memory, stay until the process ends: another engine in it waits for devices. On "
        "older releases the process can hang for ever when what is left is collected."
    ),
    effect="The end takes about a second and gives back what the start made.",
    executor=_Ended,
)
