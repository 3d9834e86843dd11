"""The executors there are on the installed vLLM, and how each is asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from packaging.version import Version

from vllm_ray_compat import schedule
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity.backends import MP, MP_EXECUTOR
from vllm_ray_compat.schedule import COMPAT_EXECUTORS, VLLM_EXECUTORS, Backend
from vllm_ray_compat.vllm_api import VllmNotFoundError, find_vllm

#: Set to ``quick``, each executor is asked on tp2 only: for every commit there are minutes, and its
#: parity runs have pp2. A release is asked all.
IS_QUICK = os.environ.get("CONFORMANCE") == "quick"

#: Tensor and pipeline parallel size of each.
TOPOLOGIES = {"tp2": (2, 1), "pp2": (1, 2), "tp2pp2": (2, 2), "tp1": (1, 1)}


@dataclass(frozen=True)
class Executor:
    """One executor: vLLM's, or this package's where vLLM has none, or as a class beside vLLM's."""

    backend: str
    #: ``module:Class`` of what must run; a repaired one is a subclass of it.
    path: str
    #: What ``distributed_executor_backend`` is given.
    asked_as: str
    environ: dict[str, str] = field(default_factory=dict, hash=False)
    topologies: tuple[str, ...] = tuple(TOPOLOGIES)

    @property
    def uses_ray(self) -> bool:
        return self.backend != MP

    @property
    def is_ours(self) -> bool:
        return self.path in COMPAT_EXECUTORS.values()

    def __str__(self) -> str:
        return f"{self.backend}-ours" if self.is_ours else self.backend


def installed() -> list[Executor]:
    """Return every executor of the installed vLLM: empty where there is no vLLM."""
    try:
        ships = find_vllm().ships
    except VllmNotFoundError:
        return []
    found = [Executor(MP, MP_EXECUTOR, MP, topologies=_topologies("tp2"))]
    for backend, flag in ((Backend.V2, "1"), (Backend.LEGACY, "0")):
        path = (VLLM_EXECUTORS if backend in ships else COMPAT_EXECUTORS)[backend]
        environ = {FLAG_NAME: flag}
        if backend is Backend.LEGACY and backend not in ships:
            environ["RAYCOMPAT_RESTORE_LEGACY"] = "1"
        found.append(Executor(backend.value, path, "ray", environ, _topologies("tp2")))
    if len(ships) == 2 and _can_run_our_legacy():
        # Not the one that "ray" selects here, and four workers take the longest to start.
        some = ("tp2",) if IS_QUICK else ("tp2", "pp2", "tp1")
        ours = COMPAT_EXECUTORS[Backend.LEGACY]
        found.append(Executor(Backend.LEGACY.value, ours, ours, {FLAG_NAME: "0"}, some))
    return found


def _topologies(*some: str) -> tuple[str, ...]:
    return some if IS_QUICK else tuple(TOPOLOGIES)


def _can_run_our_legacy() -> bool:
    """It is made for the releases that have none, and so uses what came with vLLM 0.24."""
    return schedule.parse_release(find_vllm().version) >= Version("0.24.0")
