"""A request with logprobs stalls the engine: its arrays lie in the channel of the graph."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _DetachedFuture(Future[Any]):
    """vLLM's future of a step, which is resolved by whoever asks for its result."""

    def __init__(self, step: Future[Any]) -> None:
        super().__init__()
        self._step = step

    def result(self, timeout: float | None = None) -> Any:
        """Return a result that points into no channel."""
        return _detached(self._step.result(timeout))


class _Detached(Mixin):
    """What a step returns is copied out of the channel's memory."""

    def _execute_dag(self, *args: Any, **kwargs: Any) -> Any:
        vllms: Any = super()
        step = vllms._execute_dag(*args, **kwargs)
        return _DetachedFuture(step) if isinstance(step, Future) else _detached(step)


def _detached(output: Any) -> Any:
    from vllm_ray_compat.executors.legacy_graph import detached

    return None if output is None else detached(output)


REPAIR = Repair(
    name="legacy-detach",
    defects=("L-13",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.20.0",
    reports=("https://github.com/vllm-project/vllm/issues/38602",),
    symptom="A request with logprobs stalls the engine until RAY_CGRAPH_get_timeout: a step's "
    "arrays lie in the channel, and while one is in use the next step cannot be written there.",
    effect="Every step's result is copied out of the shared memory of the graph's channel.",
    executor=_Detached,
)
