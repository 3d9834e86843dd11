"""Reading the data files beside this module, strictly: a mistake in one says where it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from importlib import resources
from typing import TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


def load(name: str, model: type[M]) -> M:
    """Read ``data/<name>.json`` as a *model*.

    Raises:
        AssertionError: it is not one; the text names every place. The file is part of this
            package, so nobody but its authors can meet this.
    """
    path = resources.files(__package__).joinpath("data", f"{name}.json")
    try:
        return model.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise AssertionError(f"{name}.json: {'; '.join(faults)}") from error


def check_names(names: Iterable[str]) -> None:
    """Check that each name is there once.

    Raises:
        ValueError: with all that are not.
    """
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise ValueError(f"there twice: {', '.join(twice)}")
