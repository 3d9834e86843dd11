"""Find captures: a file, or all of a folder that a run wrote."""

from __future__ import annotations

from pathlib import Path

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.stored import StoredCapture


def capture_files(path: Path) -> list[Path]:
    """Return the capture that *path* is, or those in the folder that it is.

    Raises:
        UsageError: there is nothing, or a folder without captures.
    """
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise UsageError(
            f"The folder {path} holds no captures; expected a report folder, with a file "
            "ARM.jsonl for each arm."
        )
    return found


def check_whole(capture: StoredCapture) -> StoredCapture:
    """Return *capture* if its arm ran to its end.

    Raises:
        UsageError: it did not.
    """
    if capture.partial:
        why = f" ({capture.failure.reason}: {capture.failure.message})" if capture.failure else ""
        raise UsageError(
            f"{capture.path}:{capture.lines}: the capture ends here, before its arm did{why}; "
            "expected an 'end' record. With --partial what there is of it is compared."
        )
    return capture
