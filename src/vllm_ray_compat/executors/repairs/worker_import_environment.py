"""A variable that vLLM reads when a worker imports it is set too late."""

from __future__ import annotations

import os

from vllm_ray_compat.executors.repairs.early import early
from vllm_ray_compat.executors.repairs.repair import Repair
from vllm_ray_compat.schedule import Backend

#: ``VllmConfig`` sets it for some models; ``eager_break_during_capture`` reads it as a decorator.
_NAME = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def _variables() -> dict[str, str]:
    value = os.environ.get(_NAME)
    return {} if value is None else {_NAME: value}


REPAIR = Repair(
    name="worker-import-environment",
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.23.0",
    fixed_in="0.29.0",
    reports=("https://github.com/vllm-project/vllm/pull/53293",),
    symptom="Models for which vLLM turns breakable CUDA graphs on answer with garbled text.",
    effect=f"{_NAME} reaches workers before they import vLLM.",
    executor=early(_variables),
)
