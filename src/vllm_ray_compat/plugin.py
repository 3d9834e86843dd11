"""The ``vllm.general_plugins`` entry point, and the one patch of vLLM: ``Executor.get_class``.

vLLM loads general plugins in every process (front end, EngineCore, workers, the model registry's
subprocess) before it chooses an executor. Loading must therefore be cheap, repeatable and
harmless: it imports nothing of vLLM, Ray or torch, and of this package only what it needs there
(the rest when ``"ray"`` is first asked for); and it never raises, because a plugin that raises
takes vLLM down.

Why ``get_class`` and not a class passed as ``distributed_executor_backend``: with a class,
vLLM's own ``== "ray"`` tests no longer hold and multi-node workers, data parallelism and the
auto-selected ``"ray"`` break.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vllm_ray_compat.names import ABSTRACT_MODULE, FLAG_NAME, INVALID_FLAG_NAME, LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)

#: vLLM modules whose calling of the plugin loader marks a process that is not the driver.
_NOT_DRIVER = ("vllm.v1.worker", "vllm.v1.engine.core", "vllm.model_executor.models.registry")


class _State:
    """What was changed in this process, so that it can be undone."""

    def __init__(self) -> None:
        self.original: staticmethod[..., Any] | None = None
        self.executor_class: type | None = None
        self.hook: _AfterImport | None = None
        self.undo: list[Callable[[], None]] = []
        self.installed = False
        self.is_driver = True


_state = _State()


def register() -> None:
    """Entry point of ``vllm.general_plugins``: route ``"ray"``, or step aside. Never raises."""
    try:
        if os.environ.get("RAYCOMPAT_DISABLE", "").strip() == "1":
            return
        if not _state.installed:
            _state.is_driver = _called_by_the_driver()
        install()
    except Exception:
        _logger.exception(
            "vllm_ray_compat could not install itself; vLLM chooses the Ray executor on its own. "
            "Please report this."
        )


def install() -> None:
    """Route ``distributed_executor_backend="ray"`` in this process. Idempotent.

    Framework authors who build a ``VllmConfig`` without ``EngineArgs`` call this first: vLLM
    loads plugins too late for them.
    """
    if _state.installed:
        return
    _state.installed = True
    _normalise_flag()
    if FLAG_NAME in os.environ:
        from vllm_ray_compat.vllm_api import make_variable_known

        _state.undo.append(make_variable_known(FLAG_NAME))
    module = sys.modules.get(ABSTRACT_MODULE)
    if module is not None and hasattr(module, "Executor"):
        _patch(module)
    else:
        _state.hook = _AfterImport(ABSTRACT_MODULE, _patch)
        sys.meta_path.insert(0, _state.hook)


def uninstall() -> None:
    """Take everything back that :func:`install` changed in this process. Idempotent."""
    if _state.hook is not None:
        _state.hook.remove()
    if _state.executor_class is not None and _state.original is not None:
        setattr(_state.executor_class, "get_class", _state.original)  # noqa: B010 (mypy)
    for undo in reversed(_state.undo):
        undo()
    if (deprecations := sys.modules.get("vllm_ray_compat.deprecations")) is not None:
        deprecations.forget()
    _state.__init__()  # type: ignore[misc]


def _patch(module: ModuleType) -> None:
    executor_class = module.Executor
    original = executor_class.__dict__["get_class"]
    _state.executor_class, _state.original = executor_class, original

    def get_class(vllm_config: Any) -> type:
        """Choose the executor class; routed by vllm_ray_compat for the literal ``"ray"``."""
        vllms_own: Callable[[Any], type] = original.__get__(None, executor_class)
        backend = vllm_config.parallel_config.distributed_executor_backend
        if not (isinstance(backend, str) and backend == "ray"):
            return vllms_own(vllm_config)
        from vllm_ray_compat.deprecations import RaycompatWarning
        from vllm_ray_compat.errors import RaycompatError

        try:
            return _route()
        except (RaycompatError, RaycompatWarning):
            raise  # meant for the caller: a refusal, or a warning that filters made an error
        except Exception:
            _logger.exception(
                "vllm_ray_compat failed to route distributed_executor_backend='ray'; vLLM "
                "chooses on its own. Please report this."
            )
            return vllms_own(vllm_config)

    executor_class.get_class = staticmethod(get_class)


def _route() -> type:
    from vllm_ray_compat import deprecations, selector
    from vllm_ray_compat.executors import catalog
    from vllm_ray_compat.executors.environment import propagate_settings

    decision = selector.select()
    decision.enforce()
    executor = catalog.load(decision)
    if _state.is_driver:
        propagate_settings()
        deprecations.issue(decision.warnings)
        if not _inside_config():
            _logger.info("%s", decision.one_line())
    return executor


def _inside_config() -> bool:
    """Whether ``get_class`` was called while a config is being built, not for an engine.

    Every engine start asks twice: ``VllmConfig.__post_init__`` to learn of async scheduling, and
    the engine to get the class. One line in the log is enough.
    """
    frame = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(__package__):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return frame.f_code.co_name == "__post_init__"


def _called_by_the_driver() -> bool:
    frame = sys._getframe(1).f_back
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_NOT_DRIVER):
            return False
        frame = frame.f_back
    return True


def _normalise_flag() -> None:
    """Make the flag safe for vLLM's own ``bool(int(value))``, in this process and its children.

    A valid value is written back without white space. An invalid one is set aside, because
    vLLM evaluates it in every process and for every backend: with ``mp`` it must do no harm, and
    with ``"ray"`` :func:`_route` raises our error.
    """
    raw = os.environ.get(FLAG_NAME)
    if raw is None or raw in ("0", "1"):
        return
    from vllm_ray_compat.flag import InvalidFlagError, parse_flag

    def restore() -> None:
        os.environ.pop(INVALID_FLAG_NAME, None)
        os.environ[FLAG_NAME] = raw

    _state.undo.append(restore)
    try:
        parse_flag(raw, f"environment variable {FLAG_NAME}")
    except InvalidFlagError as error:
        del os.environ[FLAG_NAME]
        os.environ[INVALID_FLAG_NAME] = raw
        if _state.is_driver:
            _logger.warning("%s It matters only for distributed_executor_backend='ray'.", error)
    else:
        os.environ[FLAG_NAME] = raw.strip()


class _AfterImport(MetaPathFinder):
    """Call a function once, right after a module was imported by somebody else.

    The plugin must not import vLLM's modules itself: in the model registry's subprocess the
    executor is never imported, and there the import would be a second of pure loss.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._busy = False

    def remove(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._busy:
            return None
        self._busy = True
        try:
            for finder in sys.meta_path:
                if finder is self:
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None and spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._done)
                    return spec
            return None
        finally:
            self._busy = False

    def _done(self, module: ModuleType) -> None:
        self.remove()
        try:
            self._then(module)
        except Exception:
            _logger.exception("vllm_ray_compat could not patch %s; vLLM is unchanged", self._name)


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
