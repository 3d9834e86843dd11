"""``vllm-ray-compat parity run``: reference and candidate arms over topologies and a suite."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_ENVIRONMENT, EXIT_HOLDS

if TYPE_CHECKING:
    from rich.console import Console

    from vllm_ray_compat.parity.report.data import Report

T = TypeVar("T")


def run(
    model: Annotated[
        str, typer.Option(help="'tiny', a folder, or a model in the local Hugging Face cache.")
    ] = "tiny",
    topology: Annotated[
        list[str] | None,
        typer.Option(help="tpN, ppN or tpNppN; repeatable. Default: tp2 and pp2."),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            help="legacy, v2, mp or module:Class; legacy@PYTHON runs it in that environment."
        ),
    ] = "legacy",
    candidate: Annotated[
        str | None,
        typer.Option(help="As --reference. Default: v2, or legacy when the reference is v2."),
    ] = None,
    also: Annotated[list[str] | None, typer.Option(help="A further candidate; repeatable.")] = None,
    suite: Annotated[
        str, typer.Option(help="The suite of workloads: smoke, full, or a file of your own.")
    ] = "smoke",
    requests: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your own requests, not a suite: the JSON Lines that `vllm run-batch` reads.",
        ),
    ] = None,
    report_dir: Annotated[
        Path, typer.Option(help="Where the report, captures and logs are written.")
    ] = Path("parity-report"),
    ray_address: Annotated[
        str | None,
        typer.Option(help="Use this Ray cluster instead of starting one; it is left running."),
    ] = None,
    arm_timeout: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds after which an arm counts as hanging; for each engine it has."
        ),
    ] = 300.0,
    engine_core: Annotated[
        str,
        typer.Option(help="'inproc': exact batches. 'process': as in production."),
    ] = "inproc",
    engine_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A vLLM engine argument for all arms; repeatable."),
    ] = None,
    bundle_indices: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ARM:]LIST",
            help="The bundles of the placement group that ranks 0, 1, … get, for example 1,0: in "
            "all arms on Ray, or in that one (v2:1,0); repeatable.",
        ),
    ] = None,
    trace: Annotated[
        bool,
        typer.Option(
            help="Also record each step at the executor's boundary, to place a difference."
        ),
    ] = False,
    forcing: Annotated[
        bool,
        typer.Option(
            help="After another token, run the candidate once more along the reference's tokens."
        ),
    ] = True,
    inject_fault: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Alter the candidate's capture on purpose (token, logprob, order, …; a wrong word "
            "lists all); the verdict must be FAIL.",
        ),
    ] = None,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=ABS[,REL]|auto",
            help="Tolerate differences of logprobs, cumulative_logprob or prompt_logprobs; "
            "repeatable. Default: none.",
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
    from vllm_ray_compat.parity import plan, runner
    from vllm_ray_compat.parity.report.console import print_report

    checked = plan.plan(
        plan.Options(
            model=model,
            topologies=tuple(topology or ("tp2", "pp2")),
            reference=reference,
            candidates=(candidate or _other_than(reference), *(also or ())),
            suite=suite,
            requests=requests,
            trace=trace,
            forcing=forcing,
            report_dir=report_dir,
            ray_address=ray_address,
            arm_timeout_s=arm_timeout,
            inject_fault=inject_fault,
            tolerances=tuple(tolerance or ()),
            engine_core=plan.parse_engine_core(engine_core),
            engine_args=plan.parse_engine_args(engine_arg or ()),
            bundle_indices=tuple(bundle_indices or ()),
        )
    )
    missing = _warn_of_missing()
    report = watched(checked, runner.run)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        console = result_console()
        print_report(report, console)
        path = report_dir / ("report.json" if "report.html" in missing else "report.html")
        console.print(f"Report: {path}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(report))


def _warn_of_missing() -> dict[str, str]:
    """Say before the run, not after it, which forms of the report cannot be written.

    Returns:
        Form -> the package it wants.
    """
    from vllm_ray_compat.parity.progress import PipeConsole
    from vllm_ray_compat.parity.report.files import missing_packages

    errors = PipeConsole(stderr=True, force_terminal=False, no_color=True)
    missing = missing_packages()
    for form, package in missing.items():
        errors.print(
            f"Warning: {form} will not be written, because the package {package!r} is not "
            "installed: pip install 'vllm-ray-compat[cli]'. `vllm-ray-compat parity report` can "
            "write it later.",
            markup=False,
            soft_wrap=True,
        )
    return missing


class Watchable(Protocol):
    """A checked plan of something that takes its time."""

    @property
    def remarks(self) -> Sequence[str]:
        """What to warn of before it begins."""

    @property
    def steps(self) -> int:
        """How many there are."""

    @property
    def report_dir(self) -> Path:
        """Where it writes."""


def watched(checked: Watchable, work: Callable[..., T]) -> T:
    """Do *work* on a plan with the display of its progress; a signal ends it in order.

    Raises:
        typer.Exit: it was interrupted; everything of it has ended.
    """
    from vllm_ray_compat.parity.interrupt import InterruptedRunError, StopRequest
    from vllm_ray_compat.parity.progress import Display

    errors = error_console()
    for remark in checked.remarks:
        errors.print(f"Warning: {remark}", markup=False, soft_wrap=True)
    try:
        with StopRequest() as stop, Display(errors, checked.steps) as display:
            return work(checked, display, stop=stop)
    except InterruptedRunError as error:
        errors.print(
            "Interrupted: every process of this run was ended; what it wrote is in "
            f"{checked.report_dir}.",
            markup=False,
            soft_wrap=True,
        )
        raise typer.Exit(128 + error.signum) from None


def _other_than(reference: str) -> str:
    return "legacy" if reference == "v2" else "v2"


def error_console() -> Console:
    """Return the console of standard error.

    Off a terminal plain lines, whatever FORCE_COLOR says; on one that cannot move, too.
    """
    from vllm_ray_compat.parity.progress import PipeConsole

    live = sys.stderr.isatty()
    return PipeConsole(stderr=True, force_terminal=live, no_color=not live)


def result_console() -> Console:
    """Return the console of standard output: plain, 120 columns wide, where it is no terminal."""
    from vllm_ray_compat.parity.progress import PipeConsole

    if sys.stdout.isatty():
        return PipeConsole()
    return PipeConsole(width=120, force_terminal=False, no_color=True)


def exit_code(report: Report) -> int:
    """Return the exit code of a finished run."""
    if report.environment_failure:
        return EXIT_ENVIRONMENT
    return EXIT_HOLDS if report.verdict == "pass" else EXIT_DIFFERENCE
