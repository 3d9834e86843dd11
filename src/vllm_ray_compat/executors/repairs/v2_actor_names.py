"""V2 gives the workers of all data parallel engines the same names."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import original, replaced
from vllm_ray_compat.schedule import Backend


class _Named(Mixin):
    """The engine's number is part of the name."""

    def _init_executor(self) -> None:
        from vllm.v1.executor import ray_executor_v2

        build = original(ray_executor_v2, "build_actor_name")
        # The index and not the rank: vLLM resets the rank of engines that are independent.
        index = self.parallel_config.data_parallel_index

        def with_engine(instance_id: str, *args: Any, **kwargs: Any) -> Any:
            return build(f"{instance_id}_dp{index}", *args, **kwargs)

        with replaced(ray_executor_v2, build_actor_name=with_engine):
            super()._init_executor()


REPAIR = Repair(
    name="v2-actor-names",
    defects=("V2-10",),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in="0.21.0",
    reports=(),
    symptom="With data parallel engines over Ray, the second start fails: a name is taken.",
    effect="Names of actors contain the number of the data parallel engine.",
    executor=_Named,
)
