"""The command line ``vllm-ray-compat``.

Exit codes: 0 holds, 1 a difference or a failed check, 2 wrong usage or an invalid flag, 3 the
environment cannot run it, 130 interrupted. Errors go to standard error, one paragraph each.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

from vllm_ray_compat.errors import EXIT_ENVIRONMENT, RaycompatError

#: Commands with a parser of their own, run without typer (see ``cli/status.py``).
FAST = ("schedule", "status")


def main() -> NoReturn:
    """Run the command line and exit; the console script's entry point."""
    argv = sys.argv[1:]
    try:
        if argv and argv[0] in FAST:
            sys.exit(importlib.import_module(f"{__name__}.{argv[0]}").main(argv[1:]))
        _typer_app()
    except RaycompatError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)


def _typer_app() -> None:
    try:
        from vllm_ray_compat.cli.app import app
    except ModuleNotFoundError as error:
        # The core depends on packaging alone; the other commands need more, and say what.
        print(
            f"This command needs the package {error.name!r}, which is not installed. "
            "Install it: pip install 'vllm-ray-compat[cli]'. Without it there are "
            f"{' and '.join(FAST)}.",
            file=sys.stderr,
        )
        sys.exit(EXIT_ENVIRONMENT)
    app()
