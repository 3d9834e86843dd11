"""The command line ``vllm-ray-compat``.

Exit codes: 0 holds, 1 a difference or a failed check, 2 wrong usage or an invalid flag, 3 the
environment cannot run it, 130 interrupted. Errors go to standard error, one paragraph each.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from vllm_ray_compat.errors import EXIT_ENVIRONMENT, RaycompatError

#: Commands with a parser of their own, run without typer (see ``cli/status.py``), and the module
#: of each in this package.
FAST = {"schedule": "schedule", "status": "status", "parity matrix": "parity_matrix"}

#: What the other commands need (the extra ``cli``).
_CLI_PACKAGES = (
    *("typer", "rich", "pydantic", "psutil", "safetensors", "tokenizers", "numpy"),
    *("jinja2", "junitparser", "matplotlib"),
)


def main() -> NoReturn:
    """Run the command line and exit; the console script's entry point."""
    if sys.stdout is None:  # closed by the caller (`>&-`): there is nobody to tell
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the exit)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its code instead of a traceback.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (`| head`): say nothing more, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    except RaycompatError as error:
        print(f"Error: {error}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EBADF):
            raise
        print(f"Error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EXIT_ENVIRONMENT
    sys.exit(code)


def _run(argv: list[str]) -> int:
    try:
        for words, module in FAST.items():
            given = words.split()
            if argv[: len(given)] == given:
                return int(importlib.import_module(f"{__name__}.{module}").main(argv[len(given) :]))
        from vllm_ray_compat.cli.app import app

        return int(app(argv, standalone_mode=True) or 0)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _CLI_PACKAGES:
            raise
        # The core depends on packaging alone; the other commands need more, and say what.
        print(
            f"This command needs the package {error.name!r}, which is not installed. "
            "Install it: pip install 'vllm-ray-compat[cli]'. Without it there are "
            f"{', '.join(FAST)}.",
            file=sys.stderr,
        )
        return EXIT_ENVIRONMENT
