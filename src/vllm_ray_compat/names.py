"""Names that several modules share; imports nothing, so that the plugin loads in no time."""

from __future__ import annotations

#: vLLM's own flag for the choice of the Ray executor.
FLAG_NAME = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"

#: Where the plugin keeps an invalid value after it has taken it out of the flag, so that vLLM
#: does not stumble over it and child processes still refuse it for ``ray``. Private: it is
#: deliberately outside the prefix that users set.
INVALID_FLAG_NAME = "_VLLM_RAY_COMPAT_INVALID_FLAG"

#: This package in vLLM's allow-list of plugins (VLLM_PLUGINS), for both of its entry points.
PLUGIN_NAME = "vllm_ray_compat"

#: The prefix of this package's settings.
PREFIX = "RAYCOMPAT_"

#: A child of vLLM's own logger, so that its handler, level and format apply.
LOGGER_NAME = "vllm.plugins.vllm_ray_compat"

#: The module whose ``Executor.get_class`` is routed.
ABSTRACT_MODULE = "vllm.v1.executor.abstract"
