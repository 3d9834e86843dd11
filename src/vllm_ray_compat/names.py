"""Names that several modules share; imports nothing, so that the plugin loads in no time."""

from __future__ import annotations

#: vLLM's own flag for the choice of the Ray executor.
FLAG_NAME = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"

#: Where the plugin keeps an invalid value after it has taken it out of the flag, so that vLLM
#: does not stumble over it and child processes still refuse it for ``ray``. Private: it is
#: deliberately outside the prefix that users set.
INVALID_FLAG_NAME = "_VLLM_RAY_COMPAT_INVALID_FLAG"

#: The prefix of this package's settings.
PREFIX = "RAYCOMPAT_"

#: A child of vLLM's own logger, so that its handler, level and format apply. Its parents have
#: no handler unless vLLM configures them, so nothing is printed outside a vLLM process.
LOGGER_NAME = "vllm.plugins.vllm_ray_compat"

#: The module whose ``Executor.get_class`` is routed.
ABSTRACT_MODULE = "vllm.v1.executor.abstract"
