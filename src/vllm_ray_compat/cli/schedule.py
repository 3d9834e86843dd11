"""``vllm-ray-compat schedule``: the phase table."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.schedule import as_dicts
from vllm_ray_compat.tables import decision_table, schedule_table

SCHEMA = "vllm_ray_compat.schedule/1"


def schedule(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as in the migration guide.")
    ] = False,
) -> None:
    """Show which vLLM release ships and prefers which Ray executor, and what the flag does."""
    if as_json and markdown:
        raise UsageError("--json and --markdown exclude each other. Give one of them.")
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "phases": as_dicts()}, indent=2))
    else:
        typer.echo(f"{schedule_table()}\n\n{decision_table()}")
