"""Warning classes: each names the release it speaks of, in its class and in its text.

They are ``FutureWarning`` at heart, not ``DeprecationWarning``, which Python hides by default:
the reader is the operator of a fleet, not the author of the calling module. ``python -W error::
vllm_ray_compat.deprecations.LegacyExecutorRemovedInVllm033Warning`` turns one of them into an
error; ``RAYCOMPAT_STRICT=1`` does it for all.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable
from types import FrameType

from vllm_ray_compat.names import FLAG_NAME, LOGGER_NAME

#: Frames of these packages are not the user's: a warning points past them.
_NOT_THE_USER = (
    *("vllm", "vllm_ray_compat", "pydantic", "dataclasses", "contextlib", "importlib"),
    *("asyncio", "uvloop", "concurrent", "threading"),
)


class RaycompatWarning(FutureWarning):
    """Base of this package's warnings."""


class LegacyExecutorRemovedInVllm033Warning(RaycompatWarning):
    """The legacy Compiled Graph executor runs; vLLM 0.33.0 has removed it.

    Fix: unset the flag or set it to 1, after a parity run; or plan to set
    ``RAYCOMPAT_RESTORE_LEGACY=1`` with 0.33.
    """


class FlagIgnoredSinceVllm033Warning(RaycompatWarning):
    """The flag asks for the legacy executor where vLLM no longer has one: V2 runs.

    Fix: ``RAYCOMPAT_RESTORE_LEGACY=1`` to go back to legacy, or unset the flag.
    """


class UnknownSettingWarning(RaycompatWarning):
    """A ``RAYCOMPAT_*`` variable is set that does not exist. Fix: correct the name."""


def legacy_removed_text(removed_in: str) -> str:
    """Return the text for a decision that runs legacy while vLLM still ships it."""
    return (
        f"{FLAG_NAME}=0 selects the legacy Ray executor (RayDistributedExecutor), which is "
        f"deprecated and removed in vLLM {removed_in}. Prove parity with `vllm-ray-compat parity "
        f"run`, then unset the flag. To keep legacy on {removed_in}, set "
        "RAYCOMPAT_RESTORE_LEGACY=1 there."
    )


def flag_ignored_text(removed_in: str) -> str:
    """Return the text for flag off where the legacy executor is gone."""
    return (
        f"{FLAG_NAME}=0 has no effect: vLLM {removed_in} removed the legacy Ray executor, so "
        "RayExecutorV2 runs. To roll back to legacy, set RAYCOMPAT_RESTORE_LEGACY=1 as well; to "
        "stay on V2, unset the flag."
    )


_issued: set[tuple[type[Warning], str]] = set()


def issue(found: Iterable[RaycompatWarning]) -> None:
    """Issue each warning once a process, through ``warnings`` and through vLLM's logger.

    The location is the user's line: the first frame outside vLLM, this package and what they
    run on (in ``vllm serve`` there is none, and it is the console script).

    Raises:
        RaycompatWarning: the first one that the caller's filters make an error, after all were
            issued; it counts as not issued, so that the next attempt meets it again.
    """
    errors: list[RaycompatWarning] = []
    for warning in found:
        key = (type(warning), str(warning))
        if key in _issued:
            continue
        if "vllm.logger" in sys.modules:
            logging.getLogger(LOGGER_NAME).warning("%s: %s", type(warning).__name__, warning)
        frame = users_frame()
        try:
            warnings.warn_explicit(
                warning,
                category=type(warning),
                filename=frame.f_code.co_filename,
                lineno=frame.f_lineno,
                module=frame.f_globals.get("__name__", "__main__"),
            )
        except RaycompatWarning as error:
            errors.append(error)
        else:
            _issued.add(key)
    if errors:
        raise errors[0]


def forget() -> None:
    """Allow every warning to be issued again (used by ``uninstall``)."""
    _issued.clear()


def users_frame() -> FrameType:
    """Return the innermost frame that belongs neither to vLLM nor to this package.

    Without such a frame, the outermost one.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return frame


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOT_THE_USER
