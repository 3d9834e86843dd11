"""The report folder: only what a run of this tool wrote is ever removed from it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vllm_ray_compat.errors import UsageError

#: Marks a folder as written by this tool; an empty folder gets it before anything else.
MARKER = ".vllm-ray-compat-report"
#: Stands at the beginning of every file that is rendered from a report.
REPORT_MARK = "vllm-ray-compat parity report"
_MARKER_TEXT = "Written by vllm-ray-compat parity; the next run into this folder replaces it.\n"

RAY_LOGS = "ray-logs"
#: The endings of an arm's own files, ``<arm>.spec.json`` and so on.
_ARM_ENDINGS = (".spec.json", ".suite.json", ".jsonl", ".log")  # of traces, too: they end in .jsonl
_ROLES = ("reference", "reference-again", "candidate")
#: The forms of a report; all but the first are rendered from it.
REPORT_FILES = ("report.json", "report.md", "report.html", "junit.xml")
_FIXED = (*REPORT_FILES, "suite.json", "ray-start.log", "ray-start-2.log")


def check(folder: Path, marker: str = MARKER, of: str = "this tool") -> None:
    """Check that *folder* can take a report, without writing into it.

    Args:
        folder: the folder.
        marker: the file that marks it as written by us.
        of: whose its files must be, for the message.

    Raises:
        UsageError: it is a file, holds something else, or cannot be written.
    """
    if not str(folder).strip() or str(folder) == ".":
        raise UsageError(
            "The report folder is the current one or empty. Name a folder of its own with "
            "--report-dir."
        )
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"The report folder {folder} is a file. Name a folder.")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
            raise UsageError(
                f"The report folder {folder} holds files that are not of {of}. Name a new "
                "or an empty folder with --report-dir."
            )
        above = folder
        while not above.exists():
            above = above.parent
    except OSError as error:
        raise unusable(folder, error) from None
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"The report folder {folder} cannot be written. Name another.")


def prepare(folder: Path) -> Path:
    """Make *folder*, remove what an earlier run left in it, and return it.

    Raises:
        UsageError: see :func:`check`.
    """
    check(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text(_MARKER_TEXT, encoding="utf-8")
        for old in folder.iterdir():
            if old.is_file() and (old.name in _FIXED or _is_of_an_arm(old)):
                old.unlink()
        shutil.rmtree(folder / RAY_LOGS, ignore_errors=True)
    except OSError as error:
        raise unusable(folder, error) from None
    return folder


def _is_of_an_arm(path: Path) -> bool:
    return path.name.endswith(_ARM_ENDINGS) and any(f"-{role}-" in path.name for role in _ROLES)


def unusable(folder: Path, error: OSError) -> UsageError:
    """Build the error for a folder that cannot be written."""
    return UsageError(
        f"The report folder {str(folder)[:200]} cannot be written: {error.strerror}. Name another "
        "with --report-dir."
    )
