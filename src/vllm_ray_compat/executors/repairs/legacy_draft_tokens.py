"""Speculative decoding with pipeline stages never gets its drafts: the wrong worker is asked."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _LastStage(Mixin):
    """Drafts are taken from the last stage, which alone makes them."""

    def take_draft_token_ids(self) -> Any:
        config = self.parallel_config
        answers = self.collective_rpc("take_draft_token_ids")
        return answers[config.world_size - config.tensor_parallel_size]


REPAIR = Repair(
    name="legacy-draft-tokens",
    defects=("L-5",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="Speculative decoding with several pipeline stages speeds nothing up: the drafts of "
    "the first stage are taken, which has none.",
    effect="The drafts of the last stage are taken.",
    executor=_LastStage,
)
