"""The typer application: registers the commands, each from its own file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from vllm_ray_compat.cli import (
    bench_control_plane,
    bench_decode,
    doctor,
    parity_compare,
    parity_matrix,
    parity_record,
    parity_report,
    parity_run,
    parity_schema,
    parity_selftest,
    schedule,
    status,
)

app = typer.Typer(
    name="vllm-ray-compat",
    help="Route and prove vLLM's two Ray executors: legacy Compiled Graph and RayExecutorV2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _listed(on: typer.Typer, name: str, about: str, run: Callable[[Sequence[str]], int]) -> None:
    """List a command that parses its own arguments, so that the help names it, too."""

    def command(context: typer.Context) -> None:
        raise typer.Exit(run(context.args))

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    on.command(name, help=about, add_help_option=False, context_settings=settings)(command)


_listed(app, "status", status.ABOUT, status.main)
_listed(app, "schedule", schedule.ABOUT, schedule.main)
app.command("doctor")(doctor.doctor)

parity = typer.Typer(
    help="Run identical workloads through two executors and compare the outputs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
parity.command("run")(parity_run.run)
parity.command("record")(parity_record.record)
parity.command("compare")(parity_compare.compare)
parity.command("schema")(parity_schema.schema)
parity.command("selftest")(parity_selftest.selftest)
parity.command("report")(parity_report.report)
_listed(parity, "matrix", parity_matrix.ABOUT, parity_matrix.main)
app.add_typer(parity, name="parity")

bench = typer.Typer(
    help="Compare what executors cost: mp, V2 and legacy in turns, with intervals.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench.command("control-plane")(bench_control_plane.control_plane)
bench.command("decode")(bench_decode.decode)
app.add_typer(bench, name="bench")
