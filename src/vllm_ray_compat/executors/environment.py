"""Variables that an engine sets for its own workers, and for EngineCore.

The ``RAYCOMPAT_*`` variables have to reach the Ray workers of both executors. ``RayExecutorV2``
copies the driver's whole environment to its workers. The legacy executor copies an allow-list:
names vLLM has registered, some prefixes, and what the operator adds in
``VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY`` (vLLM ≥ 0.17.1). Ours is added there.
"""

from __future__ import annotations

import os

from vllm_ray_compat.executors.inside_ray import ray_of_this_worker
from vllm_ray_compat.names import PREFIX

_EXTRA_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"


def settings_for_workers() -> dict[str, str]:
    """Return the variables to set in the driver so that its workers get our settings.

    The operator's own prefixes stay. Where no ``RAYCOMPAT_*`` variable is set there is nothing
    to copy, and nothing to set.
    """
    if not any(name.startswith(PREFIX) for name in os.environ):
        return {}
    prefixes = [p.strip() for p in os.environ.get(_EXTRA_PREFIXES, "").split(",") if p.strip()]
    if PREFIX in prefixes:
        return {}
    return {_EXTRA_PREFIXES: ",".join([*prefixes, PREFIX])}


def address_for_engine_core() -> dict[str, str]:
    """Return the variable with which EngineCore finds the cluster of the actor it is started in.

    EngineCore is a process of its own and connects to Ray anew. vLLM sets the address only where
    it chooses to spawn EngineCore by itself; with ``VLLM_WORKER_MULTIPROC_METHOD=spawn`` it does
    not, and unless the cluster left its address in Ray's default folder, EngineCore starts a
    second, empty one, where there is no placement group (``KeyError: 'bundles'``).
    """
    if os.environ.get("RAY_ADDRESS") or (ray := ray_of_this_worker()) is None:
        return {}
    return {"RAY_ADDRESS": str(ray.get_runtime_context().gcs_address)}
