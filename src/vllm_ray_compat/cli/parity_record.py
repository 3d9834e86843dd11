"""``vllm-ray-compat parity record``: run one executor, keep what it answers, compare later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_ENVIRONMENT


def record(
    backend: Annotated[
        str, typer.Option(help="legacy, v2, mp or module:Class; legacy@PYTHON as in `parity run`.")
    ],
    model: Annotated[str, typer.Option(help="As in `parity run`.")] = "tiny",
    topology: Annotated[
        list[str] | None, typer.Option(help="As in `parity run`; repeatable. Default: tp2 and pp2.")
    ] = None,
    suite: Annotated[str, typer.Option(help="As in `parity run`.")] = "smoke",
    requests: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As in `parity run`.")
    ] = None,
    report_dir: Annotated[Path, typer.Option(help="Where captures and logs are written.")] = Path(
        "parity-record"
    ),
    ray_address: Annotated[str | None, typer.Option(help="As in `parity run`.")] = None,
    arm_timeout: Annotated[float, typer.Option(min=1, help="As in `parity run`.")] = 300.0,
    engine_arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="As in `parity run`.")
    ] = None,
    trace: Annotated[bool, typer.Option(help="As in `parity run`.")] = False,
) -> None:
    """Record what one executor answers, to be compared on another machine or release.

    Writes a capture for each topology (and engine profile of the suite); `parity compare` takes
    two of them, or two folders. Exits 0 when every arm ran to its end, 1 when one did not, 2 for
    wrong usage, 3 when this environment cannot run it. What a broken arm wrote is kept.
    """
    from vllm_ray_compat.cli.parity_run import watched
    from vllm_ray_compat.parity import plan, runner

    checked = plan.plan(
        plan.Options(
            model=model,
            topologies=tuple(topology or ("tp2", "pp2")),
            reference=backend,
            candidates=(),
            again=False,
            suite=suite,
            requests=requests,
            report_dir=report_dir,
            ray_address=ray_address,
            arm_timeout_s=arm_timeout,
            engine_args=plan.parse_engine_args(engine_arg or ()),
            trace=trace,
        )
    )
    ran = watched(checked, runner.run_arms)
    for outcome in ran.outcomes:
        typer.echo(f"{outcome.spec.capture}: {outcome.failure or 'complete'}")
    for one in checked.not_run.values():
        typer.echo(f"workload {one.workload}: not run, {one.state}: {one.told}")
    if any(outcome.environment for outcome in ran.outcomes):
        raise typer.Exit(EXIT_ENVIRONMENT)
    if any(outcome.failure for outcome in ran.outcomes):
        raise typer.Exit(EXIT_DIFFERENCE)
