"""``vllm-ray-compat parity selftest``: the comparison finds what it must, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_HOLDS


def selftest(
    captures: Annotated[
        Path | None,
        typer.Option(help="A capture or a report folder. Default: those that come along."),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Comparisons of like with like that must raise no alarm.")
    ] = 50,
    positions: Annotated[
        int, typer.Option(min=1, help="Places, chosen by the seed, at which each fault is put.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="Of the places.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Prove that the comparison finds every seeded fault at its place, and raises no false alarm.

    Runs no engine. Exits 0 when all were caught and nothing else was, 1 when not, 2 for captures
    that cannot be read.
    """
    from vllm_ray_compat.parity.selftest import selftest as run

    result = run(captures, runs, positions, seed)
    if as_json:
        typer.echo(json.dumps(result.model_dump(mode="json", by_alias=True), indent=2))
    else:
        told = [f"Captures: {', '.join(result.captures)}"]
        told += [f"  of {name}, the beginning only" for name in result.shortened]
        told += [f"  {name}: {count.caught}/{count.total}" for name, count in result.kinds.items()]
        told += [
            f"MISSED: {t.fault.kind} in {t.capture}, workload {t.fault.workload}, request "
            f"{t.fault.request}, position {t.fault.position}: {t.problem}"
            for t in result.missed
        ]
        told += [f"FALSE ALARM: {a.between}: {a.first}" for a in result.false_alarms]
        told += [
            f"Faults caught: {result.caught}/{result.total}",
            f"False alarms: {len(result.false_alarms)}/{result.runs + result.harmless} "
            f"({result.real_runs} between real arms, {result.runs - result.real_runs} with copies, "
            f"{result.harmless} harmless changes)",
        ]
        for line in told:
            typer.echo(line)
    raise typer.Exit(EXIT_HOLDS if result.holds else EXIT_DIFFERENCE)
