"""``vllm-ray-compat parity run``: reference and candidate arms over topologies and a suite."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_ENVIRONMENT, EXIT_HOLDS, unknown

if TYPE_CHECKING:
    from vllm_ray_compat.parity.report.data import Report

_ENGINE_CORES = ("inproc", "process")


class _TerminatedError(BaseException):
    """SIGTERM arrived: unwind like Ctrl-C, so that everything started is stopped."""


def run(
    model: Annotated[
        str, typer.Option(help="'tiny', a folder, or a model in the local Hugging Face cache.")
    ] = "tiny",
    topology: Annotated[
        list[str] | None,
        typer.Option(help="tpN, ppN or tpNppN; repeatable. Default: tp2 and pp2."),
    ] = None,
    reference: Annotated[str, typer.Option(help="legacy, v2, mp or module:Class.")] = "legacy",
    candidate: Annotated[str, typer.Option(help="legacy, v2, mp or module:Class.")] = "v2",
    also: Annotated[list[str] | None, typer.Option(help="A further candidate; repeatable.")] = None,
    suite: Annotated[str, typer.Option(help="The suite of workloads.")] = "smoke",
    report_dir: Annotated[
        Path, typer.Option(help="Where report.json, captures and logs are written.")
    ] = Path("parity-report"),
    ray_address: Annotated[
        str | None,
        typer.Option(help="Use this Ray cluster instead of starting one; it is left running."),
    ] = None,
    arm_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which an arm counts as hanging.")
    ] = 300.0,
    engine_core: Annotated[
        str,
        typer.Option(help="'inproc': exact batches. 'process': as in production."),
    ] = "inproc",
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A vLLM engine argument for all arms; repeatable."),
    ] = None,
    inject_fault: Annotated[
        str | None,
        typer.Option(
            metavar="token|logprob|order|finish|missing",
            help="Alter the candidate's capture on purpose; the verdict must be FAIL.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object.")
    ] = False,
) -> None:
    """Prove that two executors give identical outputs for identical workloads.

    Starts each arm in its own process, the reference twice for the noise floor, and compares
    exactly. Exits 0 when the verdict is PASS, 1 when it is not, 2 for wrong usage, 3 when this
    environment cannot run it.
    """
    from rich.console import Console

    from vllm_ray_compat.parity import runner
    from vllm_ray_compat.parity.progress import Display
    from vllm_ray_compat.parity.report.console import print_report

    if engine_core not in _ENGINE_CORES:
        raise unknown("engine core", engine_core, _ENGINE_CORES)
    checked = runner.plan(
        runner.Options(
            model=model,
            topologies=tuple(topology or ("tp2", "pp2")),
            reference=reference,
            candidates=(candidate, *(also or ())),
            suite=suite,
            report_dir=report_dir,
            ray_address=ray_address,
            arm_timeout_s=arm_timeout,
            inject_fault=inject_fault,
            engine_core="inproc" if engine_core == "inproc" else "process",
            engine_args=runner.parse_engine_args(engine_arg or ()),
        )
    )
    signal.signal(signal.SIGTERM, _terminate)
    errors = Console(stderr=True)
    try:
        with Display(errors, checked.steps) as display:
            report = runner.run(checked, display)
    except (KeyboardInterrupt, _TerminatedError) as error:
        errors.print(
            f"Interrupted: every process of this run was ended; what it wrote is in {report_dir}.",
            markup=False,
        )
        stopped_by = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + stopped_by) from None
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=120)
        print_report(report, console)
        console.print(f"Report: {report_dir / 'report.json'}", markup=False, highlight=False)
    raise typer.Exit(exit_code(report))


def exit_code(report: Report) -> int:
    """Return the exit code of a finished run."""
    if report.environment_failure:
        return EXIT_ENVIRONMENT
    return EXIT_HOLDS if report.verdict == "pass" else EXIT_DIFFERENCE


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    raise _TerminatedError
