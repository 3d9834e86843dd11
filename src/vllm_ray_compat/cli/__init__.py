"""The command line ``vllm-ray-compat``.

Exit codes: 0 holds, 1 a difference or a failed check, 2 wrong usage or an invalid flag, 3 the
environment cannot run it, 130 interrupted. Errors go to standard error, one paragraph each.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from vllm_ray_compat.errors import EXIT_ENVIRONMENT, RaycompatError


def main() -> NoReturn:
    """Run the command line and exit; the console script's entry point."""
    try:
        from vllm_ray_compat.cli.app import app
    except ModuleNotFoundError as error:
        # The core depends on packaging alone; the command line needs more, and says what.
        print(
            f"The command line needs the package {error.name!r}, which is not installed. "
            "Install it: pip install 'vllm-ray-compat[cli]'.",
            file=sys.stderr,
        )
        sys.exit(EXIT_ENVIRONMENT)
    try:
        app()
    except RaycompatError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(0)
