"""``vllm-ray-compat parity compare``: captures recorded on other machines, releases or days."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vllm_ray_compat.errors import UsageError


def compare(
    reference: Annotated[
        Path, typer.Argument(metavar="A", help="A capture, or a report folder: the reference.")
    ],
    candidate: Annotated[
        Path, typer.Argument(metavar="B", help="A capture, or a report folder: what is judged.")
    ],
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=ABS[,REL]|auto",
            help="Tolerate differences of logprobs, cumulative_logprob or prompt_logprobs, or "
            "those usual for the captures' dtype; repeatable. Default: the suite's, or none.",
        ),
    ] = None,
    again: Annotated[
        list[Path] | None,
        typer.Option(help="A further capture of the reference arm, for the noise floor."),
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Take captures that end early; never PASS."),
    ] = False,
    report_dir: Annotated[
        Path | None, typer.Option(help="Write report.json into this folder.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object.")
    ] = False,
) -> None:
    """Compare two captures, or two report folders topology by topology.

    Exact unless a tolerance is declared; what the engines differ in is always told. Exits 0 when
    the verdict is PASS, 1 when it is not, 2 for captures that cannot be read or compared.
    """
    from vllm_ray_compat.cli.parity_run import exit_code, result_console
    from vllm_ray_compat.parity import folder
    from vllm_ray_compat.parity.cross import compare_captures
    from vllm_ray_compat.parity.report.console import print_report
    from vllm_ray_compat.parity.report.files import write_report

    if report_dir is not None:
        _check_apart(report_dir, [reference, candidate, *(again or ())])
        folder.check(report_dir)
    report = compare_captures(
        reference, candidate, tolerances=tolerance or (), again=again or (), partial=partial
    )
    if report_dir is not None:
        write_report(report, folder.prepare(report_dir))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        console = result_console()
        print_report(report, console)
        if report_dir is not None:
            path = report_dir / "report.json"
            console.print(f"Report: {path}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(report))


def _check_apart(report_dir: Path, captures: list[Path]) -> None:
    """Check that no capture lies where the report goes: a run removes an older one's captures.

    Raises:
        UsageError: one does.
    """
    target = report_dir.resolve()
    for capture in captures:
        if target in (capture.resolve(), capture.resolve().parent):
            raise UsageError(
                f"The report folder {report_dir} holds captures that are compared, and they would "
                "be removed. Name another with --report-dir."
            )
