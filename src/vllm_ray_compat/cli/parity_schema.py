"""``vllm-ray-compat parity schema``: the JSON Schema of a file."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    name: Annotated[str, typer.Argument(help="capture (of one line), suite, report or selftest.")],
) -> None:
    """Print the JSON Schema of a capture's lines, a suite, a report or a self test's result."""
    from vllm_ray_compat.parity.schemas import schema_of

    typer.echo(json.dumps(schema_of(name), indent=2))
