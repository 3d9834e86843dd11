"""Turn a :class:`~vllm_ray_compat.selector.Decision` into the class it names."""

from __future__ import annotations

import importlib
import importlib.util

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import PROVIDER_COMPAT, Decision


class ExecutorMissingError(UnusableEnvironmentError):
    """The decision names an executor that neither vLLM nor this package has here (exit 3)."""


def is_present(decision: Decision) -> bool:
    """Say whether the class of *decision* is there, without importing vLLM.

    What vLLM ships was read from disk when the decision was made; what this package provides is
    looked for here.
    """
    if decision.provider != PROVIDER_COMPAT:
        return True
    return importlib.util.find_spec(decision.executor.partition(":")[0]) is not None


def missing_text(decision: Decision) -> str:
    """Return what to tell the operator when :func:`is_present` is false."""
    way_out = (
        f"Unset {FLAG_NAME} or set it to 0 to run the legacy executor"
        if decision.backend is Backend.V2
        else f"Unset {FLAG_NAME} and RAYCOMPAT_RESTORE_LEGACY to run RayExecutorV2"
    )
    return (
        f"vLLM {decision.vllm} does not ship the {decision.backend.value} Ray executor, and this "
        f"version of vllm_ray_compat does not provide it yet ({decision.executor}). {way_out}."
    )


def load(decision: Decision) -> type:
    """Import and return the executor class of *decision*.

    Raises:
        ExecutorMissingError: there is no such class here.
        ImportError: the module exists and does not import, with its own message.
    """
    if not is_present(decision):
        raise ExecutorMissingError(missing_text(decision))
    module_name, _, class_name = decision.loaded.partition(":")
    executor: type = getattr(importlib.import_module(module_name), class_name)
    return executor
