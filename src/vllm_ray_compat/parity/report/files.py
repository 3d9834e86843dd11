"""Write a report in all its forms: ``report.json`` first, then what is rendered from it."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import folder
from vllm_ray_compat.parity.report.data import Report
from vllm_ray_compat.parity.report.html import render_html
from vllm_ray_compat.parity.report.junit import render_junit
from vllm_ray_compat.parity.report.markdown import render_markdown

_FORMS: dict[str, Callable[[Report], str | bytes]] = {
    "report.md": render_markdown,
    "junit.xml": render_junit,
    "report.html": render_html,
}


#: What a form needs beyond what `parity run` needs anyway.
_PACKAGES = {"junit.xml": ("junitparser",), "report.html": ("jinja2", "matplotlib")}


def missing_packages() -> dict[str, str]:
    """Return the forms that cannot be written here, each with a package that is not installed."""
    return {
        name: package
        for name, packages in _PACKAGES.items()
        for package in packages
        if importlib.util.find_spec(package) is None
    }


def write_report(report: Report, where: Path) -> list[Path]:
    """Write all forms of *report* into the folder *where*; returns the files.

    ``report.json`` comes first and needs no further package. A form that does need one which is
    not installed is left out (see :func:`missing_packages`): what a long run found is not lost
    for want of a plotting library, and every form can be rendered from ``report.json`` later.

    Raises:
        UsageError: a file cannot be written.
    """
    text = json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"
    written = [write_whole(where / "report.json", text)]
    missing = missing_packages()
    for name, render in _FORMS.items():
        if name not in missing:
            written.append(write_whole(where / name, render(report)))
    return written


def write_rendered(report: Report, where: Path) -> list[Path]:
    """Render *report* again: write every form but ``report.json`` into *where*; returns the files.

    Raises:
        UsageError: a file of such a name is there and is not of this tool, or a file cannot be
            written.
        ModuleNotFoundError: a package that a form needs is not installed.
    """
    for name in _FORMS:
        _check_ours(where / name)
    rendered = {name: render(report) for name, render in _FORMS.items()}
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(where, error) from None
    return [write_whole(where / name, content) for name, content in rendered.items()]


def _check_ours(path: Path) -> None:
    """Check that *path* may be replaced: nothing, or what an earlier rendering wrote."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(path, error) from None
    if folder.REPORT_MARK.encode() not in start and not (path.parent / folder.MARKER).is_file():
        raise UsageError(
            f"{path} was not written by this tool and is not replaced. Name another folder with "
            "--output-dir."
        )


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all; returns its path.

    Raises:
        UsageError: it cannot be written.
        OSError: the disk is full; the command line says so.
    """
    part = path.with_name(path.name + ".part")
    # A lone surrogate has no UTF-8; its escape is the JSON for it.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise _unusable(path, error) from None
    return path


def _unusable(path: Path, error: OSError) -> Exception:
    if error.errno == errno.ENOSPC:
        return error  # the command line says so, with the exit code of the environment
    return UsageError(f"{path} cannot be written: {error.strerror}.")
