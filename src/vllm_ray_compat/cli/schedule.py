"""``vllm-ray-compat schedule``: the phase table (argparse, for the reason ``status`` gives)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from vllm_ray_compat.errors import EXIT_HOLDS
from vllm_ray_compat.schedule import as_dicts
from vllm_ray_compat.tables import decision_table, schedule_table

SCHEMA = "vllm_ray_compat.schedule/1"
ABOUT = "Show which vLLM release ships and prefers which Ray executor, and what the flag does."


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="vllm-ray-compat schedule", description=ABOUT, allow_abbrev=False
    )
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    form.add_argument(
        "--markdown", action="store_true", help="print Markdown tables (also without this option)"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.json:
        text = json.dumps({"schema": SCHEMA, "phases": as_dicts()}, indent=2)
    else:
        text = f"{schedule_table()}\n\n{decision_table()}"
    sys.stdout.write(text + "\n")
    return EXIT_HOLDS
