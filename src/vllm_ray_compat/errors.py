"""Errors that are written for a person, each with the exit code the command line gives it.

Exit codes (design, section 7): 1 a difference or a failed check, 2 wrong usage or an invalid
flag, 3 the environment cannot run what was asked.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_HOLDS = 0
EXIT_DIFFERENCE = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3


class RaycompatError(Exception):
    """Base of every error this package raises on purpose; its text is one paragraph.

    Deliberately not a ``ValueError``: pydantic, which builds vLLM's configuration, would wrap
    that in a ``ValidationError`` and bury the text.
    """

    exit_code = EXIT_DIFFERENCE


class UsageError(RaycompatError):
    """The caller asked for something that does not exist or cannot be (exit code 2)."""

    exit_code = EXIT_USAGE


class UnusableEnvironmentError(RaycompatError):
    """This machine or environment cannot run what was asked (exit code 3)."""

    exit_code = EXIT_ENVIRONMENT


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known word, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> UsageError:
    """Build the error for a word that is not one of *known*: what, the list, a suggestion."""
    words = list(known)
    return UsageError(
        f"Unknown {kind} {word!r}.{suggestion(word, words)} Known: {', '.join(words)}."
    )
