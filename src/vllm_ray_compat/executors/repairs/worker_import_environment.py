"""A variable that vLLM reads when a worker imports it is set too late."""

from __future__ import annotations

import os
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend

#: ``VllmConfig`` sets it for some models; ``eager_break_during_capture`` reads it as a decorator.
_NAME = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def _add(runtime_env: dict[str, Any]) -> None:
    if (value := os.environ.get(_NAME)) is not None:
        runtime_env.setdefault("env_vars", {})[_NAME] = value


class _Early(Mixin):
    """Ray sets it before the worker's process imports anything. One method of each executor."""

    def _build_runtime_env(self) -> dict[str, Any]:
        runtime_env: dict[str, Any] = super()._build_runtime_env()
        _add(runtime_env)
        return runtime_env

    def _update_noset_device_env_vars(self, ray_remote_kwargs: dict[str, Any]) -> Any:
        updated = super()._update_noset_device_env_vars(ray_remote_kwargs)
        _add(updated["runtime_env"])
        return updated


REPAIR = Repair(
    name="worker-import-environment",
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.23.0",
    fixed_in="0.29.0",
    reports=("https://github.com/vllm-project/vllm/pull/53293",),
    symptom="Models for which vLLM turns breakable CUDA graphs on answer with garbled text.",
    effect=f"{_NAME} reaches workers before they import vLLM.",
    executor=_Early,
)
