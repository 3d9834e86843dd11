"""Find captures: a file, or all of a folder that a run wrote."""

from __future__ import annotations

from pathlib import Path

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.stored import StoredCapture
from vllm_ray_compat.parity.trace import ENDING as TRACE


def capture_files(path: Path) -> list[Path]:
    """Return the capture that *path* is, or those in the folder that it is.

    Raises:
        UsageError: a folder without captures.
    """
    try:
        is_folder = path.is_dir()
        found = (
            sorted(file for file in path.glob("*.jsonl") if not file.name.endswith(TRACE))
            if is_folder
            else [path]
        )
    except (OSError, ValueError) as error:  # too long, a zero byte, not allowed
        raise UsageError(f"{str(path)[:200]}: cannot be read: {error}.") from None
    if not found:
        raise UsageError(
            f"{path}: the folder holds no captures; expected a capture, or a report folder with "
            "a file ARM.jsonl for each arm."
        )
    return found


def check_whole(capture: StoredCapture) -> StoredCapture:
    """Return *capture* if its arm ran to its end.

    Raises:
        UsageError: it did not, or the last line is cut short.
    """
    if not capture.partial and not capture.cut_short:
        return capture
    where = f"{capture.path}:{capture.lines}"
    if capture.cut_short:
        what = "the last line is cut short; expected a whole record and a line end"
    else:
        failure = capture.failure
        why = f" ({failure.reason}: {failure.message})" if failure else ""
        what = f"the capture ends before its arm did{why}; expected an 'end' record"
    raise UsageError(
        f"{where}: {what}. With --partial what there is of it is compared, and the verdict is "
        "inconclusive at best."
    )
