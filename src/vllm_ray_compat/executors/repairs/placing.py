"""Come in between vLLM's executor having its placement group and its starting of workers."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vllm_ray_compat.executors.repairs.replacing import original, replaced
from vllm_ray_compat.schedule import VLLM_EXECUTORS, Backend

_BACKEND_OF = {path.partition(":")[0]: backend for backend, path in VLLM_EXECUTORS.items()}


def backend_of(executor: Any) -> Backend:
    """Return which of vLLM's executors *executor* is a subclass of."""
    modules = (kind.__module__ for kind in type(executor).__mro__)
    return next(_BACKEND_OF[module] for module in modules if module in _BACKEND_OF)


def module_of(backend: Backend) -> ModuleType:
    """Return vLLM's module of the executor."""
    return importlib.import_module(VLLM_EXECUTORS[backend].partition(":")[0])


def listed_bundles(module: ModuleType) -> str:
    """Return ``VLLM_RAY_BUNDLE_INDICES`` as vLLM reads it there; empty when it is unset."""
    return str(original(module, "envs").VLLM_RAY_BUNDLE_INDICES or "")


@contextlib.contextmanager
def once_there_is_a_group(module: ModuleType, then: Callable[[], None]) -> Iterator[None]:
    """Have *then* called when the executor in *module* has its group, and no worker yet."""
    initialize = original(module, "initialize_ray_cluster")

    def initialize_ray_cluster(*args: Any, **kwargs: Any) -> None:
        initialize(*args, **kwargs)
        then()

    with replaced(module, initialize_ray_cluster=initialize_ray_cluster):
        yield
