"""Call a function once, right after a module was imported by somebody else.

The plugin must not import vLLM's modules itself: in the model registry's subprocess the executor
is never imported, and there the import would be a second of pure loss.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport(MetaPathFinder):
    """A finder that finds nothing itself: it asks the others, and wraps the loader they name."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Prepare for the module *name*; *then* gets it, and must not raise."""
        self._name = name
        self._then = then
        self._busy = False

    def insert(self) -> None:
        """Begin to watch imports."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop. Idempotent."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec the other finders give, with a loader that calls back."""
        if fullname != self._name or self._busy:
            return None
        self._busy = True
        try:
            for finder in list(sys.meta_path):
                # Finders of the oldest kind have no find_spec; Python < 3.12 still takes them.
                find_spec = getattr(finder, "find_spec", None)
                if finder is self or find_spec is None:
                    continue
                spec: ModuleSpec | None = find_spec(fullname, path, target)
                if spec is not None and spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._done)
                    return spec
            return None
        finally:
            self._busy = False

    def _done(self, module: ModuleType) -> None:
        self.remove()
        self._then(module)


class _Loader(Loader):
    """The real loader, with a function called after it; everything else passes through."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
