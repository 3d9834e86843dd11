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

import logging
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vllm_ray_compat.after_import import AfterImport
from vllm_ray_compat.names import ABSTRACT_MODULE, FLAG_NAME, INVALID_FLAG_NAME, LOGGER_NAME

if TYPE_CHECKING:
    from vllm_ray_compat.selector import Decision

#: vLLM modules whose calling of the plugin loader marks a process that is not the driver.
_NOT_DRIVER = ("vllm.v1.worker", "vllm.v1.engine.core", "vllm.model_executor.models.registry")


class _Patch:
    """One patched ``Executor`` class. Stays switchable when others have wrapped it meanwhile."""

    def __init__(self, executor_class: type) -> None:
        self.executor_class = executor_class
        self.active = True
        self._original = executor_class.__dict__["get_class"]
        vllms_own: Callable[[Any], type] = self._original.__get__(None, executor_class)

        def get_class(vllm_config: Any) -> type:
            """Choose the executor class; routed by vllm_ray_compat for the literal ``"ray"``."""
            backend = vllm_config.parallel_config.distributed_executor_backend
            if not (self.active and isinstance(backend, str) and backend == "ray"):
                return vllms_own(vllm_config)
            decision = _decide()
            _check_actor(vllm_config.parallel_config)
            return vllms_own(vllm_config) if decision is None else _follow(decision)

        self._ours = staticmethod(get_class)
        setattr(executor_class, "get_class", self._ours)  # noqa: B010 (mypy)

    def undo(self) -> None:
        """Let vLLM choose again; the attribute is restored unless somebody wrapped it since."""
        self.active = False
        if self.executor_class.__dict__.get("get_class") is self._ours:
            setattr(self.executor_class, "get_class", self._original)  # noqa: B010 (mypy)


class _State:
    """What was changed in this process, so that it can be undone."""

    def __init__(self) -> None:
        self.patch: _Patch | None = None
        self.hook: AfterImport | None = None
        self.undo: list[Callable[[], None]] = []
        self.is_driver = True


_state = _State()


def register() -> None:
    """Entry point of ``vllm.general_plugins``: route ``"ray"``, or step aside. Never raises."""
    try:
        if os.environ.get("RAYCOMPAT_DISABLE", "").strip() == "1":
            return
        _state.is_driver = _called_by_the_driver()
        install()
    except Exception:
        _say(
            logging.ERROR,
            "vllm_ray_compat could not install itself; vLLM chooses the Ray executor on its own. "
            "Please report this.",
            exc_info=True,
        )


def install() -> None:
    """Route ``distributed_executor_backend="ray"`` in this process. Idempotent.

    Framework authors who build a ``VllmConfig`` without ``EngineArgs`` call this first: vLLM
    loads plugins too late for them.
    """
    _normalise_flag()
    _make_flag_known()
    module = sys.modules.get(ABSTRACT_MODULE)
    executor_class = getattr(module, "Executor", None)
    if executor_class is not None:
        # Another class than before: the module was reloaded.
        if _state.patch is None or _state.patch.executor_class is not executor_class:
            _state.patch = _Patch(executor_class)
    elif _state.hook is None:
        _state.hook = AfterImport(ABSTRACT_MODULE, _imported)
        _state.hook.insert()


def uninstall() -> None:
    """Take everything back that :func:`install` changed in this process. Idempotent."""
    if _state.hook is not None:
        _state.hook.remove()
    if _state.patch is not None:
        _state.patch.undo()
    for undo in reversed(_state.undo):
        undo()
    if (deprecations := sys.modules.get("vllm_ray_compat.deprecations")) is not None:
        deprecations.forget()
    _state.__init__()  # type: ignore[misc]


def _imported(module: ModuleType) -> None:
    """Patch the module that was just imported; on failure leave everything as it was."""
    try:
        _state.patch = _Patch(module.Executor)
        _make_flag_known()
    except Exception:
        uninstall()
        _say(
            logging.ERROR,
            f"vllm_ray_compat could not patch {ABSTRACT_MODULE}; vLLM is unchanged. Please report "
            "this.",
            exc_info=True,
        )


def _decide() -> Decision | None:
    """Return the decision, or None when it could not be made and vLLM has to choose.

    Raises:
        RaycompatError: the decision is a refusal, meant for the caller.
    """
    from vllm_ray_compat.errors import RaycompatError
    from vllm_ray_compat.selector import select
    from vllm_ray_compat.vllm_api import VllmNotFoundError

    try:
        return select()
    except VllmNotFoundError:
        pass  # it runs, so it is there: in a form this package cannot read
    except RaycompatError:
        raise
    except Exception:
        _say(logging.ERROR, "vllm_ray_compat failed; please report this.", exc_info=True)
    _say(
        logging.WARNING,
        "vllm_ray_compat cannot decide which Ray executor to run here: vLLM chooses on its own.",
    )
    return None


def _check_actor(parallel_config: Any) -> None:
    """Refuse an engine that would wait for devices which the Ray actor around it holds.

    Raises:
        DevicesHeldByActorError: meant for the caller.
    """
    if "ray" not in sys.modules:
        return
    from vllm_ray_compat.errors import RaycompatError
    from vllm_ray_compat.executors import actor_devices

    try:
        warning = actor_devices.check(parallel_config)
    except RaycompatError:
        raise
    except Exception:
        _say(
            logging.ERROR,
            "vllm_ray_compat could not see which devices the Ray actor around this engine holds; "
            "please report this.",
            exc_info=True,
        )
    else:
        if warning is not None and not _inside_config():
            _say(logging.WARNING, warning)


def _follow(decision: Decision) -> type:
    """Return the class of a decision, and say once what has to be said.

    Raises:
        StrictModeError: warnings are errors.
        ExecutorMissingError: the class is nowhere.
        ImportError: it does not import. vLLM does not choose then: it might choose the other.
        RaycompatWarning: the caller's filters made a warning an error.
    """
    from vllm_ray_compat import deprecations
    from vllm_ray_compat.executors import catalog
    from vllm_ray_compat.executors.environment import (
        address_for_engine_core,
        settings_for_workers,
    )

    decision.enforce()
    executor = catalog.load(decision)
    if _state.is_driver:
        for name, value in {**settings_for_workers(), **address_for_engine_core()}.items():
            _set_variable(name, value)
        if not _inside_config():
            _say(logging.INFO, decision.one_line())
        deprecations.issue(decision.warnings)
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
    with ``"ray"`` :func:`_decide` raises our error.
    """
    raw = os.environ.get(FLAG_NAME)
    if raw is None or raw in ("0", "1"):
        return
    from vllm_ray_compat.flag import InvalidFlagError, parse_flag

    try:
        parse_flag(raw, f"environment variable {FLAG_NAME}")
    except InvalidFlagError as error:
        _set_variable(FLAG_NAME, None)
        _set_variable(INVALID_FLAG_NAME, raw)
        if _state.is_driver:
            _say(
                logging.WARNING,
                f"{error} It matters only for distributed_executor_backend='ray'.",
            )
    else:
        _set_variable(FLAG_NAME, raw.strip())


def _make_flag_known() -> None:
    """Register the flag with a vLLM that does not know it; again whenever vLLM may be there now."""
    if FLAG_NAME in os.environ and "vllm.envs" in sys.modules:
        from vllm_ray_compat.vllm_api import make_variable_known

        _state.undo.append(make_variable_known(FLAG_NAME))


def _set_variable(name: str, value: str | None) -> None:
    """Set (or with None remove) a variable; undone unless somebody has changed it meanwhile."""
    before = os.environ.get(name)

    def put(text: str | None) -> None:
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text

    def undo() -> None:
        if os.environ.get(name) == value:
            put(before)

    put(value)
    _state.undo.append(undo)


def _say(level: int, text: str, *, exc_info: bool = False) -> None:
    """Log *text*; a logging set-up that raises must not take vLLM down with it."""
    try:
        logging.getLogger(LOGGER_NAME).log(level, "%s", text, exc_info=exc_info)
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write(f"{text} (Logging it failed: {error!r})\n")
