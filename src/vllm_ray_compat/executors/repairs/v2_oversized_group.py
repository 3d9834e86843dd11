"""V2 waits for ever when the placement group has more device bundles than it needs."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import original, replaced
from vllm_ray_compat.schedule import Backend


class _Truncated(Mixin):
    """Only the bundles that get a worker are counted as readers of the message queue."""

    def _init_executor(self) -> None:
        from vllm.v1.executor import ray_executor_v2

        bundles = original(ray_executor_v2, "get_bundles_sorted_by_node")

        def first(*args: Any, **kwargs: Any) -> Any:
            return bundles(*args, **kwargs)[: self.parallel_config.world_size]

        with replaced(ray_executor_v2, get_bundles_sorted_by_node=first):
            super()._init_executor()


REPAIR = Repair(
    name="v2-oversized-group",
    defects=("V2-1",),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in=None,
    reports=(),
    symptom="A placement group with more device bundles than the world size hangs the start.",
    effect="The message queue waits for the workers there are, not for one of every bundle.",
    executor=_Truncated,
)
