"""An engine that is shut down before its first step, or fails to start, leaves its workers.

vLLM's ``shutdown`` ends the workers only when the graph exists, which the first step makes, and
never removes the placement group that vLLM has created.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

from vllm_ray_compat.executors.repairs import groups, workers
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, original, replaced
from vllm_ray_compat.names import LOGGER_NAME
from vllm_ray_compat.schedule import Backend

_logger = logging.getLogger(LOGGER_NAME)


def _telling(ray: Any, made: Callable[[Any], None]) -> StandIn:
    """Return Ray, as far as vLLM's module uses it, that tells *made* of every actor."""

    def remote(**options: Any) -> Callable[[type], StandIn]:
        def of(worker: type) -> StandIn:
            actor_class = ray.remote(**options)(worker)

            def create(*args: Any, **kwargs: Any) -> Any:
                actor = actor_class.remote(*args, **kwargs)
                made(actor)
                return actor

            return StandIn(actor_class, remote=create)

        return of

    return StandIn(ray, remote=remote)


class _Ended(Mixin):
    """Workers are ended and a group of this engine is removed, however far it came."""

    def _init_executor(self) -> None:
        from vllm_ray_compat.executors.legacy_resources import GraphResources

        self._held = GraphResources()
        self._whereabouts: list[Any] = []
        try:
            with self._recorded():
                super()._init_executor()
            self._note_segments(self._held)  # and again at the end; but a dead worker has none then
        except BaseException:
            try:
                self.shutdown()
            except Exception:  # why it did not start is what has to be told
                _logger.warning("What the failed start had made is not all gone", exc_info=True)
            raise

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Note the actors as they are made, and the placement group if vLLM makes one."""
        from vllm.v1.executor import ray_executor

        from vllm_ray_compat.executors.ray_cluster import Group

        where = workers.asking_where()

        def made(actor: Any) -> None:
            self._held.actors.append(actor)
            self._whereabouts.append(actor.__ray_call__.remote(where))

        ray = _telling(original(ray_executor, "ray"), made)
        with groups.noted() as groups_made, replaced(ray_executor, ray=ray):
            try:
                yield
            finally:  # a start that fails has to give it back, too
                if groups_made:
                    self._held.group = Group(groups_made[0], True, self.parallel_config)

    def _note_segments(self, held: Any) -> None:
        """Note which shared memory the workers on this node use; asks no worker that is stuck."""
        import ray

        asked, self._whereabouts = self._whereabouts, []
        answers: list[Any] = []
        if asked and ray.is_initialized():
            answers, _ = ray.wait(asked, num_returns=len(asked), timeout=0)
        for answer in answers:
            with contextlib.suppress(Exception):  # of a worker that is dead already
                held.local_pids += workers.on_this_node([ray.get(answer, timeout=1)])
        held.segments.note(held.local_pids)

    def shutdown(self) -> None:
        """End the workers and release everything. Idempotent; also called when collected."""
        held = self.__dict__.pop("_held", None)
        if held is None or sys.is_finalizing():  # Ray is gone by then, and the workers with it
            return
        self._note_segments(held)
        held.graph, self.forward_dag = self.__dict__.get("forward_dag"), None
        held.release(graceful=not self.__dict__.get("is_failed", False))
        held.free_segments()


REPAIR = Repair(
    name="legacy-shutdown",
    defects=("L-3",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="An engine that is shut down before its first step, or fails to start, keeps its "
    "workers and devices; the placement group stays in any case.",
    effect="Shutdown, a failed start and garbage collection end the workers, and remove the "
    "placement group if vLLM created it for this engine.",
    executor=_Ended,
)
