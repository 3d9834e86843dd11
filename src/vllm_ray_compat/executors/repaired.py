"""vLLM's own executors, with the repairs in force here.

``RayExecutorV2`` and ``RayDistributedExecutor`` are subclasses of vLLM's classes of these names,
and ``RayWorkerProc`` and ``RayWorkerWrapper`` of the classes of their Ray actors. vLLM hands
executor classes to other processes by module and name, so each process makes its own from the
installed release and ``RAYCOMPAT_REPAIRS``; nothing of vLLM is changed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vllm_ray_compat.executors import repairs
from vllm_ray_compat.executors.repairs.early import early
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import replaced
from vllm_ray_compat.schedule import VLLM_EXECUTORS, Backend
from vllm_ray_compat.settings import read_settings
from vllm_ray_compat.vllm_api import find_vllm

if TYPE_CHECKING:
    RayDistributedExecutor: type
    RayExecutorV2: type
    RayWorkerProc: type
    RayWorkerWrapper: type

_BACKEND_OF = {path.partition(":")[2]: backend for backend, path in VLLM_EXECUTORS.items()}
_WORKERS = {Backend.V2: "RayWorkerProc", Backend.LEGACY: "RayWorkerWrapper"}
_BACKEND_OF_WORKER = {name: backend for backend, name in _WORKERS.items()}


def __getattr__(name: str) -> Any:
    if name in _BACKEND_OF:
        made = _executor(_BACKEND_OF[name], name)
    elif name in _BACKEND_OF_WORKER:
        made = _worker(_BACKEND_OF_WORKER[name], name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made  # pickle looks it up, and has to find the same
    return made


def in_force(backend: Backend) -> tuple[Repair, ...]:
    """Return the repairs of *backend* in this process and environment."""
    settings = read_settings()
    version = find_vllm().version
    return repairs.in_force(backend, version, settings.repairs, settings.unwanted_repairs)


def _vllms_module(backend: Backend) -> Any:
    return importlib.import_module(VLLM_EXECUTORS[backend].partition(":")[0])


def _executor(backend: Backend, name: str) -> type:
    chosen = in_force(backend)
    mixins: list[type] = [repair.executor for repair in chosen if repair.executor is not None]
    if any(repair.worker is not None for repair in chosen):
        names = ",".join(repair.name for repair in chosen)
        # A worker makes its class when it is sent there, and has to make the same.
        mixins += [early(lambda: {"RAYCOMPAT_REPAIRS": names}), _own_workers(backend)]
    vllms = getattr(_vllms_module(backend), name)
    applied = tuple(repair.name for repair in chosen)
    text = f"vLLM's {name}, repaired: {', '.join(applied) or 'nothing'}."
    return type(
        name,
        (*mixins, vllms),
        {"__module__": __name__, "__doc__": text, "raycompat_repairs": applied},
    )


def _worker(backend: Backend, name: str) -> type:
    mixins = [repair.worker for repair in in_force(backend) if repair.worker is not None]
    vllms = getattr(_vllms_module(backend), name)
    return type(
        name, (*mixins, vllms), {"__module__": __name__, "__doc__": f"vLLM's {name}, repaired."}
    )


def _own_workers(backend: Backend) -> type:
    """Return the class that has an executor make its actors of the repaired class."""
    worker = _WORKERS[backend]

    class _OwnWorkers(Mixin):
        def _init_executor(self) -> None:
            ours = getattr(importlib.import_module(__name__), worker)
            with replaced(_vllms_module(backend), **{worker: ours}):
                super()._init_executor()

    return _OwnWorkers
