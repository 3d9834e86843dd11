"""vLLM's dataclasses made by the fields they have here: each release has others."""

from __future__ import annotations

import builtins
import dataclasses
import typing
from typing import Any

_WITH_AN_EMPTY_VALUE = (bool, dict, float, int, list, set, str, tuple)


def make(kind: type, **known: Any) -> Any:
    """Make a *kind* of what is known of its fields.

    What it has no field for is left out. A field without a default that is not known gets the
    empty value of its type, and None where that has none.

    Args:
        kind: a dataclass.
        known: values by the names fields have in any release.
    """
    values = {}
    for one in dataclasses.fields(kind):
        if one.name in known:
            values[one.name] = known[one.name]
        elif one.default is one.default_factory is dataclasses.MISSING:
            values[one.name] = _empty(one.type)
    return kind(**values)


def _empty(hint: Any) -> Any:
    if isinstance(hint, str):  # postponed annotations
        of = getattr(builtins, hint.partition("[")[0].strip(), None)
    else:
        of = typing.get_origin(hint) or hint
    return of() if of in _WITH_AN_EMPTY_VALUE else None
