"""Run a Python module that ends when its parent does: ``python guard.py MODULE [ARGUMENT ...]``.

For the case in which the parent cannot clean up, because it was killed (SIGKILL, out of memory).
Linux delivers the signal; elsewhere the module simply runs. A script of its own that imports
nothing of this package, so that it costs nothing and ``sys.path`` stays what it would be.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal and become the module."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(f"{sys.argv[1]}: the parent is gone")
    # -P: without it the current folder comes first, and a checkout of vLLM there would be
    # imported instead of the installed one.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *safe, "-m", *sys.argv[1:]])


if __name__ == "__main__":
    main()
