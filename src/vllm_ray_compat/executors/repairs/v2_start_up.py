"""A start of V2 that fails leaves its workers and devices behind, or never ends."""

from __future__ import annotations

import logging
import traceback
import weakref
from functools import partial
from typing import Any

from vllm_ray_compat.executors.repairs import groups, workers
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, original, replaced
from vllm_ray_compat.names import LOGGER_NAME
from vllm_ray_compat.schedule import Backend

_logger = logging.getLogger(LOGGER_NAME)

#: Seconds that what a worker has started gets to let go of its shared memory.
_OTHERS_S = 2.0


class _Start:
    """One start: until when it may take, who has to live, and what there is to clean up."""

    def __init__(self, executor: Any) -> None:
        from vllm_ray_compat.executors import startup
        from vllm_ray_compat.executors.segments import Segments

        self._startup = startup
        self._executor = executor
        self._segments = Segments()
        self._local_pids: list[int] | None = None
        # From here on, because vLLM waits for devices first, with a limit of its own.
        self._deadline: Any = None

    def get(self, refs: Any) -> Any:
        """Stand in for ``ray.get`` of what vLLM asks all workers, or the first."""
        if self._deadline is None:
            self._deadline = self._startup.Deadline(self._startup.start_timeout_s())
        if self._local_pids is None:
            self._local_pids = self._find_local_pids()
        asked = refs if isinstance(refs, list) else [refs]
        results = list(self._collect(dict(enumerate(asked))).values())
        # Now, because a worker that dies can no longer be asked.
        self._segments.note(self._local_pids)
        return results if isinstance(refs, list) else results[0]

    def wait(self, queue_ref: weakref.ref[Any]) -> None:
        """Stand in for ``wait_until_ready`` of a queue."""
        queue: Any = queue_ref()
        del queue.wait_until_ready  # vLLM's own method again
        run_refs = {h.rank: h.run_ref for h in self._executor.ray_worker_handles}
        self._startup.wait_until_ready(queue, run_refs, self._deadline)

    def undo(self, error: BaseException) -> None:
        """Leave no worker and no shared memory. What it raises, if anything, is not raised."""
        executor = self._executor
        self._segments.note(self._local_pids or ())
        self._segments.spare(getattr(executor, "rpc_broadcast_mq", None))
        try:
            executor.shutdown()
            if (finalizer := getattr(executor, "_finalizer", None)) is not None:
                # It holds the executor, and would shut it down once more at the very end.
                finalizer.detach()
        except Exception:
            _logger.exception("The failed start could not be cleaned up; its cause follows")
        # Frames of the failed start hold the broadcast queue, which frees its own memory.
        traceback.clear_frames(error.__traceback__)
        self._segments.free(_OTHERS_S)

    def _collect(self, refs: dict[int, Any]) -> dict[int, Any]:
        return self._startup.collect(refs, "The start", self._deadline)

    def _find_local_pids(self) -> list[int]:
        handles, where = self._executor.ray_worker_handles, workers.asking_where()
        found = self._collect({h.rank: h.actor.__ray_call__.remote(where) for h in handles})
        return workers.on_this_node(found.values())


class _Queues:
    """Stands in for the class ``MessageQueue``: the queues it makes watch the workers."""

    def __init__(self, vllms: Any, start: _Start) -> None:
        self._vllms = vllms
        self._start = start

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._watching(self._vllms(*args, **kwargs))

    def create_from_handle(self, *args: Any, **kwargs: Any) -> Any:
        return self._watching(self._vllms.create_from_handle(*args, **kwargs))

    def _watching(self, queue: Any) -> Any:
        queue.wait_until_ready = partial(self._start.wait, weakref.ref(queue))
        return queue


class _Watched(Mixin):
    """A start with an end: a deadline, an eye on the workers, and a cleanup when it fails."""

    def _init_executor(self) -> None:
        from vllm.v1.executor import ray_executor_v2

        start = _Start(self)
        ray = StandIn(original(ray_executor_v2, "ray"), get=start.get)
        queues = _Queues(original(ray_executor_v2, "MessageQueue"), start)
        with groups.noted() as made:
            try:
                with replaced(ray_executor_v2, ray=ray, MessageQueue=queues):
                    super()._init_executor()
            except BaseException as error:
                start.undo(error)
                groups.give_back(made, self.parallel_config)
                raise


REPAIR = Repair(
    name="v2-start-up",
    defects=("V2-3", "V2-4"),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in=None,
    reports=(),
    symptom=(
        "A start that fails keeps workers, devices and shared memory; a worker that dies late in "
        "it, or never answers, hangs it for ever."
    ),
    effect=(
        "Within VLLM_ENGINE_READY_TIMEOUT_S a start is done or fails with the cause and the rank, "
        "and one that failed has given everything back."
    ),
    executor=_Watched,
)
