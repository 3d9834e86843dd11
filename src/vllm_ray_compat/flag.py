"""Read ``VLLM_USE_RAY_V2_EXECUTOR_BACKEND``, the flag that vLLM itself gave this choice.

vLLM 0.20–0.32 evaluates the flag as ``bool(int(value))``: a value such as ``true`` or an empty
string ends in a bare ``ValueError``, and in every process, whatever the backend. Here the same
values are refused with an error that can be acted on.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.names import FLAG_NAME, INVALID_FLAG_NAME

_LOOKS_ON = frozenset({"true", "t", "yes", "y", "on", "enable", "enabled", "v2"})
_LOOKS_OFF = frozenset({"false", "f", "no", "n", "off", "disable", "disabled", "legacy"})


class FlagValue(str, enum.Enum):
    """What the flag says: nothing, on (V2) or off (legacy)."""

    UNSET = "unset"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True)
class Flag:
    """The flag as it was read: its meaning, the raw text and where that text came from."""

    value: FlagValue = FlagValue.UNSET
    raw: str | None = None
    source: str = "default"

    def __str__(self) -> str:
        return self.value.value if self.raw is None else f"{self.value.value} ({self.source})"


class InvalidFlagError(UsageError):
    """The flag holds a text that is neither 0 nor 1.

    Attributes:
        raw: the text as it was read.
        source: where it was read, for example ``environment variable X``.
    """

    def __init__(self, raw: str, source: str) -> None:
        super().__init__(raw, source)
        self.raw = raw
        self.source = source

    def __str__(self) -> str:
        return (
            f"{FLAG_NAME} has the invalid value {self.raw!r}, read from {self.source}. "
            "Accepted: 1 (RayExecutorV2), 0 (the legacy Compiled Graph executor), or unset "
            f"(the default of the vLLM release).{_hint(self.raw)}"
        )


def _hint(raw: str) -> str:
    word = raw.strip().lower()
    if word in _LOOKS_ON:
        return f" If V2 was meant, set {FLAG_NAME}=1."
    if word in _LOOKS_OFF:
        return f" If the legacy executor was meant, set {FLAG_NAME}=0."
    if not word:
        return " An empty value is not the same as unset: remove the variable."
    try:
        number = int(word)
    except ValueError:
        return " Set 0 or 1, or remove the variable."
    reading = "1" if number else "0"
    return f" vLLM alone would read it as {reading}: set {FLAG_NAME}={reading} to say that."


def parse_flag(raw: str | None, source: str) -> Flag:
    """Turn the text of the flag into a :class:`Flag`.

    Args:
        raw: ``None`` when the flag is not set. Surrounding white space is allowed, as in vLLM.
        source: where *raw* was read, for messages and for ``status``.

    Raises:
        InvalidFlagError: the text is not 0 or 1.
    """
    if raw is None:
        return Flag()
    text = raw.strip()
    if text == "1":
        return Flag(FlagValue.ON, raw, source)
    if text == "0":
        return Flag(FlagValue.OFF, raw, source)
    raise InvalidFlagError(raw, source)


def read_flag(environ: Mapping[str, str] | None = None) -> Flag:
    """Read the flag from *environ* (default ``os.environ``).

    Raises:
        InvalidFlagError: the variable is set to something else than 0 or 1.
    """
    env = os.environ if environ is None else environ
    source = f"environment variable {FLAG_NAME}"
    raw = env.get(FLAG_NAME)
    if raw is None and (set_aside := env.get(INVALID_FLAG_NAME)) is not None:
        raise InvalidFlagError(set_aside, source)
    return parse_flag(raw, source)
