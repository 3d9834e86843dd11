"""``vllm-ray-compat status``: the decision, its reasons, what changes next."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_HOLDS, unknown
from vllm_ray_compat.executors import catalog
from vllm_ray_compat.flag import Flag, parse_flag, read_flag
from vllm_ray_compat.schedule import Phase
from vllm_ray_compat.selector import Decision, rehearse, select
from vllm_ray_compat.settings import read_settings


def status(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    as_of_vllm: Annotated[
        str | None,
        typer.Option("--as-of-vllm", metavar="RELEASE", help="Rehearse another vLLM release."),
    ] = None,
    flag: Annotated[
        str | None,
        typer.Option("--flag", metavar="0|1|unset", help="Rehearse another value of the flag."),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option("--phase", metavar="0|1|2|3", help="Rehearse the policy of another phase."),
    ] = None,
) -> None:
    """Say which executor serves distributed_executor_backend="ray" here, and why.

    Exits 0; 1 when RAYCOMPAT_STRICT=1 makes a warning an error or the executor is not there;
    2 for an invalid flag; 3 without vLLM.
    """
    settings = read_settings()
    if phase is not None:
        phases = [str(int(p)) for p in Phase]
        if phase not in phases:
            raise unknown("phase", phase, phases)
        settings = rehearse(settings, int(phase), f"--phase {phase}")
    decision = select(as_of_vllm, flag=_flag(flag), settings=settings)
    if as_of_vllm is not None:
        named = f"vLLM {as_of_vllm}, named by the caller"
        if decision.policy == named:
            decision = replace(decision, policy=f"--as-of-vllm {as_of_vllm}")
    present = catalog.is_present(decision)
    if as_json:
        typer.echo(json.dumps({**decision.to_dict(), "executor_present": present}, indent=2))
    else:
        typer.echo(render(decision, present))
    failed = not present or (decision.strict and bool(decision.warnings))
    raise typer.Exit(EXIT_DIFFERENCE if failed else EXIT_HOLDS)


def _flag(text: str | None) -> Flag:
    if text is None:
        return read_flag()
    return Flag(source="--flag") if text == "unset" else parse_flag(text, "--flag")


def render(decision: Decision, present: bool) -> str:
    """Return the text form of a decision."""
    change = decision.next_change
    rows: list[tuple[str, Any]] = [
        ("vLLM", decision.vllm),
        ("phase", f"{int(decision.phase)}, from {decision.policy}"),
        ("flag", decision.flag),
        ("backend", decision.backend.value),
        ("executor", f"{decision.executor} (provider {decision.provider})"),
        *(("because", reason) for reason in decision.reasons),
        *(("note", note) for note in decision.notes),
        *(
            ("ERROR" if decision.strict else "WARNING", f"{type(w).__name__}: {w}")
            for w in decision.warnings
        ),
        *([] if present else [("ERROR", catalog.missing_text(decision))]),
        (
            "next change",
            f"{change['release']}: {change['what']}" if change else "none is known",
        ),
    ]
    return "\n".join(f"{name + ':':<13}{value}" for name, value in rows)
