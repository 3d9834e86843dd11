"""What an arm runs on: ``legacy``, ``v2``, ``mp``, or an executor class as ``module:Class``."""

from __future__ import annotations

from vllm_ray_compat.schedule import COMPAT_EXECUTORS, REPAIRED_EXECUTORS, VLLM_EXECUTORS

MP = "mp"
MP_EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"


def is_class(backend: str) -> bool:
    """Say whether *backend* names an executor class itself, as ``module:Class``."""
    return ":" in backend


def short_name(backend: str) -> str:
    """Return what *backend* is called in displays and file names: of a class, its name."""
    return backend.rpartition(":")[2]


def kind_of(backend: str) -> str:
    """Return the backend that a class is, where one was named: ``legacy``, ``v2`` or ``mp``.

    Of a class that is none of theirs, that class.
    """
    for executors in (VLLM_EXECUTORS, REPAIRED_EXECUTORS, COMPAT_EXECUTORS):
        for known, executor in executors.items():
            if backend == executor:
                return known.value
    return MP if backend == MP_EXECUTOR else backend
