"""The typer application: registers the commands, each from its own file."""

from __future__ import annotations

import typer

from vllm_ray_compat.cli import parity_run, schedule, status

app = typer.Typer(
    name="vllm-ray-compat",
    help="Route and prove vLLM's two Ray executors: legacy Compiled Graph and RayExecutorV2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("status")(status.status)
app.command("schedule")(schedule.schedule)

parity = typer.Typer(
    help="Run identical workloads through two executors and compare the outputs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
parity.command("run")(parity_run.run)
app.add_typer(parity, name="parity")
