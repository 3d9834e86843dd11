"""Workers that vLLM re-orders by node keep the old rank where KV caches are given out."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _BothRanks(Mixin):
    """Both ranks of a worker follow the order of the nodes."""

    def adjust_rank(self, rank_mapping: dict[int, int]) -> None:
        vllms: Any = super()
        vllms.adjust_rank(rank_mapping)
        self.global_rank = self.rpc_rank


REPAIR = Repair(
    name="legacy-ranks",
    defects=("L-11",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.33.0",
    reports=(
        "https://github.com/vllm-project/vllm/issues/30128",
        "https://github.com/vllm-project/vllm/pull/33700",
    ),
    symptom="On several nodes whose bundles Ray did not place in order, pipeline stages get the KV "
    "cache configuration of another stage, and the start fails with a KeyError of a layer.",
    effect="A worker gets the configuration of the rank it has.",
    worker=_BothRanks,
)
