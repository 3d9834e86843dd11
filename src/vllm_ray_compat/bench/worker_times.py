"""Mixed into vLLM's worker class: when its process began, had imported, and got its KV cache.

vLLM resolves ``worker_extension_cls`` when it has imported the worker's class and before it makes
the worker, so the time at which this module is imported is the end of a worker's imports.
"""

from __future__ import annotations

import time
from typing import Any

from vllm_ray_compat.parity.worker_probe import WorkerProbe

_imported_at = time.time()
_kv_cache_at: float | None = None


_METHOD = "initialize_from_config"


def _note_kv_cache(kind: type) -> None:
    """Note when the engine first hands this process's worker its KV cache; warm-up follows.

    In every class that has the method itself: Ray copies inherited methods into an actor's class.
    """
    original = vars(kind).get(_METHOD)
    if original is not None:

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            global _kv_cache_at
            if _kv_cache_at is None:
                _kv_cache_at = time.time()
            return original(self, *args, **kwargs)

        setattr(kind, _METHOD, noted)
    below: type
    for below in kind.__subclasses__():
        _note_kv_cache(below)


def _begin() -> None:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    _note_kv_cache(WorkerWrapperBase)


_begin()


class WorkerTimes(WorkerProbe):
    """Adds one method to every worker."""

    def raycompat_times(self) -> dict[str, float | None]:
        """Return points in time of this worker's start, in seconds since the epoch.

        ``created`` is when its process began, ``imported`` when vLLM's worker class was there,
        ``kv_cache`` when the engine had profiled it. The clocks of the nodes are compared with the
        driver's, so on several nodes the phases are as exact as those agree.
        """
        import psutil

        return {
            "created": psutil.Process().create_time(),
            "imported": _imported_at,
            "kv_cache": _kv_cache_at,
        }
