"""Move vLLM on Ray from the legacy Compiled Graph executor to RayExecutorV2, and back.

Importing this package imports nothing of vLLM, Ray or torch; the names below load on first use.

PYTEST_DONT_REWRITE (the package is a plugin of pytest, too: pytest would warn of one that was
imported before it, as vLLM does)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_ray_compat.plugin import install as install
    from vllm_ray_compat.plugin import uninstall as uninstall
    from vllm_ray_compat.schedule import Backend as Backend
    from vllm_ray_compat.schedule import Phase as Phase
    from vllm_ray_compat.selector import Decision as Decision
    from vllm_ray_compat.selector import select as select

_PUBLIC = {
    "Backend": "schedule",
    "Decision": "selector",
    "Phase": "schedule",
    "install": "plugin",
    "select": "selector",
    "uninstall": "plugin",
}

__all__ = ["Backend", "Decision", "Phase", "__version__", "install", "select", "uninstall"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vllm-ray-compat")
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
