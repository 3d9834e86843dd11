"""Make the ``RAYCOMPAT_*`` variables reach the Ray workers of both executors.

``RayExecutorV2`` copies the driver's whole environment to its workers. The legacy executor copies
an allow-list: names vLLM has registered, some prefixes, and what the operator adds in
``VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY`` (vLLM ≥ 0.17.1). Ours is added there.
"""

from __future__ import annotations

import os

from vllm_ray_compat.names import PREFIX

_EXTRA_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"


def propagate_settings() -> None:
    """Add our prefix to the prefixes the legacy executor copies, keeping the operator's own.

    Only where a ``RAYCOMPAT_*`` variable is set at all: otherwise there is nothing to copy and
    the environment stays as it was.
    """
    if not any(name.startswith(PREFIX) for name in os.environ):
        return
    prefixes = [p.strip() for p in os.environ.get(_EXTRA_PREFIXES, "").split(",") if p.strip()]
    if PREFIX not in prefixes:
        os.environ[_EXTRA_PREFIXES] = ",".join([*prefixes, PREFIX])
