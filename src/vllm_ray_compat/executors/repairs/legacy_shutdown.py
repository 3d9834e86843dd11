"""An engine that is shut down before its first step, or fails to start, leaves its workers.

vLLM's ``shutdown`` ends the workers only when the graph exists, which the first step makes, and
never removes the placement group that vLLM has created.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import original, replaced
from vllm_ray_compat.names import LOGGER_NAME
from vllm_ray_compat.schedule import Backend

_logger = logging.getLogger(LOGGER_NAME)


class _Recording:
    """Ray, as far as vLLM's module uses it, that tells of every actor that is made."""

    def __init__(self, ray: Any, made: Callable[[Any], None]) -> None:
        self._ray = ray
        self._made = made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def remote(self, **options: Any) -> Callable[[type], Any]:
        return lambda worker: _Creating(self._ray.remote(**options)(worker), self._made)


class _Creating:
    """An actor class, told of by :class:`_Recording`."""

    def __init__(self, actor_class: Any, made: Callable[[Any], None]) -> None:
        self._actor_class = actor_class
        self._made = made

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        actor = self._actor_class.remote(*args, **kwargs)
        self._made(actor)
        return actor


def _where(_actor: Any) -> tuple[str, int]:
    """Run in an actor: its node and process."""
    import ray

    return ray.get_runtime_context().get_node_id(), os.getpid()


class _Ended(Mixin):
    """Workers are ended and a group of this engine is removed, however far it came."""

    def _init_executor(self) -> None:
        from vllm_ray_compat.executors.legacy_resources import Resources

        self._held = Resources()
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
        from vllm.v1.executor import ray_executor, ray_utils

        from vllm_ray_compat.executors.ray_cluster import Group

        wait = original(ray_utils, "_wait_until_pg_ready")

        def created(group: Any) -> None:  # only one that vLLM has just made is waited for
            self._held.group = Group(group, True, self.parallel_config)
            wait(group)

        def made(actor: Any) -> None:
            self._held.actors.append(actor)
            self._whereabouts.append(actor.__ray_call__.remote(_where))

        ray = _Recording(original(ray_executor, "ray"), made)
        with (
            replaced(ray_utils, _wait_until_pg_ready=created),
            replaced(ray_executor, ray=ray),
        ):
            yield

    def _note_segments(self, held: Any) -> None:
        """Note which shared memory the workers on this node use; asks no worker that is stuck."""
        import ray

        asked, self._whereabouts = self._whereabouts, []
        answers: list[Any] = []
        if asked and ray.is_initialized():
            answers, _ = ray.wait(asked, num_returns=len(asked), timeout=0)
        for answer in answers:
            with contextlib.suppress(Exception):  # of a worker that is dead already
                node, pid = ray.get(answer, timeout=1)
                if node == ray.get_runtime_context().get_node_id():
                    held.local_pids.append(pid)
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
