"""Variables that a worker needs before its process imports anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin


def early(variables: Callable[[], Mapping[str, str]]) -> type[Mixin]:
    """Return a mixin for both executors that has Ray set *variables* before anything is imported.

    The driver's other variables reach a worker after it has imported vLLM.
    """

    class _Early(Mixin):
        """One method of each executor; vLLM calls the one it has."""

        def _build_runtime_env(self) -> dict[str, Any]:
            runtime_env: dict[str, Any] = super()._build_runtime_env()
            runtime_env.setdefault("env_vars", {}).update(variables())
            return runtime_env

        def _update_noset_device_env_vars(self, ray_remote_kwargs: dict[str, Any]) -> Any:
            updated = super()._update_noset_device_env_vars(ray_remote_kwargs)
            updated["runtime_env"].setdefault("env_vars", {}).update(variables())
            return updated

    return _Early
