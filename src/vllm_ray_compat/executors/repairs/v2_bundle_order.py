"""V2 takes the first ranks for the local ones, whatever VLLM_RAY_BUNDLE_INDICES says."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, original, replaced
from vllm_ray_compat.schedule import Backend


class _Queues(StandIn):
    """Stands in for the class ``MessageQueue``: a queue is told which ranks are local."""

    def __init__(self, vllms: Any, placed: list[tuple[int, str, str]]) -> None:
        super().__init__(vllms, _vllms=vllms, _placed=placed)

    def __call__(self, n_reader: int, n_local_reader: int, *args: Any, **kwargs: Any) -> Any:
        if self._placed:
            import ray

            here = ray.get_runtime_context().get_node_id()
            local = [rank for rank, (_, node, _) in enumerate(self._placed) if node == here]
            n_local_reader = len(local)
            kwargs["local_reader_ranks"] = local
        return self._vllms(n_reader, n_local_reader, *args, **kwargs)


class _InOrder(Mixin):
    """The broadcast queue goes by where each rank is."""

    def _init_executor(self) -> None:
        from vllm.v1.executor import ray_executor_v2

        bundles = original(ray_executor_v2, "get_bundles_for_indices")
        placed: list[tuple[int, str, str]] = []

        def in_order_of_ranks(*args: Any, **kwargs: Any) -> Any:
            placed[:] = bundles(*args, **kwargs)
            return list(placed)

        queues = _Queues(original(ray_executor_v2, "MessageQueue"), placed)
        with replaced(
            ray_executor_v2, get_bundles_for_indices=in_order_of_ranks, MessageQueue=queues
        ):
            super()._init_executor()


REPAIR = Repair(
    name="v2-bundle-order",
    defects=("V2-2",),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in=None,
    reports=(),
    symptom=(
        "With VLLM_RAY_BUNDLE_INDICES whose first ranks are not on the driver's node, ranks on "
        "other nodes look for its shared memory: the start hangs or fails, or calls time out."
    ),
    effect="Each rank reads from shared memory or TCP by the node it is on.",
    executor=_InOrder,
)
