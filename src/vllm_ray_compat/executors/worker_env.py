"""What of the driver's environment a Ray worker gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

#: Names that belong to one process or one node and are never copied (vLLM's own list, 0.32).
WORKER_SPECIFIC = frozenset(
    {
        "VLLM_HOST_IP",
        "VLLM_HOST_PORT",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)


def _excluded() -> frozenset[str]:
    """Return the names the operator excludes (``ray_non_carry_over_env_vars.json``)."""
    module = sys.modules.get("vllm.ray.ray_env")
    return frozenset(getattr(module, "RAY_NON_CARRY_OVER_ENV_VARS", ()))


def driver_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the driver's variables for a worker: all but the worker-specific and excluded ones.

    As RayExecutorV2 does; the worker's own value wins (see :func:`fill_in`).
    """
    env = os.environ if environ is None else environ
    left_out = WORKER_SPECIFIC | _excluded()
    return {name: value for name, value in env.items() if name not in left_out}


def fill_in(variables: Mapping[str, str]) -> None:
    """Set *variables* in this process where it has no value of its own."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
