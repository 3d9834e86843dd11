"""Put something else into the place of a name of vLLM's, for the time of one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from vllm_ray_compat.executors.repairs.repair import RepairMismatchError


def original(module: ModuleType, name: str) -> Any:
    """Return what *module* calls *name*.

    Raises:
        RepairMismatchError: it has no such name, so this vLLM is not the release it says it is.
    """
    try:
        return getattr(module, name)
    except AttributeError:
        raise RepairMismatchError(
            f"A repair of vLLM does not fit the installed one: {module.__name__} has no {name}, "
            "which the release it names had. Set RAYCOMPAT_REPAIRS=none to run it as it is, and "
            "report which build of vLLM this is."
        ) from None


@contextlib.contextmanager
def replaced(module: ModuleType, **values: Any) -> Iterator[None]:
    """Give the names in *values* other values in *module* while the context lasts.

    Raises:
        RepairMismatchError: *module* lacks one of them.
    """
    before = {name: original(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


@contextlib.contextmanager
def calls_through(executor: Any, hook: Callable[..., Any]) -> Iterator[None]:
    """Send the calls of all workers through *hook* while the context lasts.

    For starts: a method of the class would be paid for in every step.

    Args:
        executor: whose ``collective_rpc`` it is.
        hook: called with what stands behind it, and the arguments.
    """
    own = vars(executor)
    outer = own.get("collective_rpc")
    own["collective_rpc"] = partial(hook, executor.collective_rpc)
    try:
        yield
    finally:
        if outer is None:
            del own["collective_rpc"]
        else:
            own["collective_rpc"] = outer


class StandIn:
    """Takes the place of *behind*: the attributes given here are its own, the others *behind*'s."""

    def __init__(self, behind: Any, **own: Any) -> None:
        self.__dict__.update(own, _behind=behind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_behind"], name)
