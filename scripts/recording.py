"""Record a suite once with ``parity record``, for the scripts that measure whole recordings."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

CLI = [sys.executable, "-m", "vllm_ray_compat", "parity"]


def record(backend: str, topology: str, suite: str, folder: Path) -> float:
    """Record *suite* into *folder*; return the seconds that the whole command took.

    Raises:
        SystemExit: it failed (exit code 3); what it said is on standard error.
    """
    began = time.monotonic()
    done = subprocess.run(
        [
            *(*CLI, "record", "--backend", backend, "--topology", topology),
            *("--suite", suite, "--report-dir", str(folder)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr, sep="\n")
        print(f"{backend} could not be recorded; its logs are in {folder}", file=sys.stderr)
        raise SystemExit(3)
    return time.monotonic() - began
