"""Read ``report.json`` back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.report.data import SCHEMA, Report
from vllm_ray_compat.parity.report.text import show, visible

_NAME, _, _VERSION = SCHEMA.partition("/")


class ReportError(UsageError):
    """A file that is not a report this version reads; names file, place and what was expected."""


def read_report(folder: Path) -> Report:
    """Read the ``report.json`` in *folder*.

    Raises:
        ReportError: there is none, it cannot be read, it is not JSON, it is of another schema, or
            it does not hold what that schema says.
    """
    path = folder / "report.json"
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else "has no file report.json"
        raise ReportError(
            f"{visible(str(folder))} {what}. Name the folder that `parity run` wrote its report to."
        )
    where = visible(str(path))
    try:
        data: Any = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ReportError(f"{where} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ReportError(
            f"{where}: byte {error.start} is not UTF-8; expected a report with schema {SCHEMA!r}."
        ) from None
    except json.JSONDecodeError as error:
        raise ReportError(
            f"{where}:{error.lineno}:{error.colno}: not JSON ({error.msg}); expected a report with "
            f"schema {SCHEMA!r}."
        ) from None
    except RecursionError:
        raise ReportError(
            f"{where}: nested too deeply; expected a report with schema {SCHEMA!r}."
        ) from None
    _check_schema(data, where)
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "top level"
        raise ReportError(
            f"{where}: {visible(place)}: {visible(first['msg'])}; expected a report with schema "
            f"{SCHEMA!r}."
        ) from None


def _check_schema(data: Any, where: str) -> None:
    found = data.get("schema") if isinstance(data, dict) else None
    if found == SCHEMA:
        return
    name, _, version = found.partition("/") if isinstance(found, str) else ("", "", "")
    if name == _NAME and version.isdecimal() and int(version) > int(_VERSION):
        hint = " It is newer: render it with the version of vllm-ray-compat that wrote it."
    elif name == _NAME:
        hint = " It is older: run again, or render it with the version that wrote it."
    else:
        hint = ""
    seen = f"found {show(found)}" if found is not None else "found none"
    raise ReportError(f"{where}: schema: expected {SCHEMA!r}, {seen}.{hint}")
