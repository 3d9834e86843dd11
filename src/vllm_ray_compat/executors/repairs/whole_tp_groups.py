"""Bundles are taken as they come, and tensor-parallel groups are split over nodes needlessly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from vllm_ray_compat.executors.rank_order import WHOLE_GROUPS
from vllm_ray_compat.executors.repairs import placing
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, calls_through, original, replaced
from vllm_ray_compat.schedule import Backend


class _Whole(Mixin):
    """vLLM is told which bundles to take, in the order of ranks, as if the user had listed them."""

    workers: list[Any]

    def _init_executor(self) -> None:
        backend = placing.backend_of(self)
        module = placing.module_of(backend)
        if placing.listed_bundles(module):
            super()._init_executor()
            return
        from vllm_ray_compat.executors import ray_cluster
        from vllm_ray_compat.executors.actors import device_key

        envs = StandIn(original(module, "envs"))

        def tell() -> None:
            config = self.parallel_config
            placed = ray_cluster.place_ranks(
                config.placement_group, config, device_key(), backend, by_hand=""
            )
            listed = ",".join(str(p.bundle_index) for p in placed)
            vars(envs)["VLLM_RAY_BUNDLE_INDICES"] = listed

        with contextlib.ExitStack() as stack:
            if backend is Backend.LEGACY:
                stack.enter_context(calls_through(self, self._keeping_ranks))
            stack.enter_context(replaced(module, envs=envs))
            stack.enter_context(placing.once_there_is_a_group(module, tell))
            super()._init_executor()

    def _keeping_ranks(
        self, call: Callable[..., Any], method: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call all workers; but before legacy gives them other ranks, take that back."""
        if method == "adjust_rank":
            (adjusted,) = kwargs["args"]
            self.workers = [self.workers[adjusted[rank]] for rank in range(len(adjusted))]
            kwargs = {**kwargs, "args": ({rank: rank for rank in adjusted},)}
        return call(method, *args, **kwargs)


REPAIR = Repair(
    name=WHOLE_GROUPS,
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.15.0",
    fixed_in=None,
    reports=("https://github.com/ray-project/ray/issues/59547",),
    symptom=(
        "On several nodes, ranks of one tensor-parallel group are on two of them though a node "
        "could hold it, and every layer's all-reduce goes over the network."
    ),
    effect=(
        "Ranks go by node, the driver's first, and a tensor-parallel group is on one node where "
        "that can be done: the same with both executors. One that has to be split is named in a "
        "warning."
    ),
    executor=_Whole,
)
