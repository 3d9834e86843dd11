"""``vllm-ray-compat parity report``: render a report again, from its ``report.json`` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_ray_compat.cli.parity_run import exit_code, result_console
from vllm_ray_compat.errors import EXIT_HOLDS


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that holds report.json.")
    ],
    output_dir: Annotated[
        Path | None, typer.Option(help="Where the files are written. Default: DIR.")
    ] = None,
    verdict_code: Annotated[
        bool,
        typer.Option("--exit-code", help="Exit as the run did: 0 PASS, 1 not, 3 it could not run."),
    ] = False,
) -> None:
    """Render report.md, report.html, junit.xml and the table on the console from report.json.

    Exits 0 when all were rendered, whatever the verdict (see --exit-code), and 2 when there is no
    report.json that this version can read.
    """
    from vllm_ray_compat.parity.report.console import print_report
    from vllm_ray_compat.parity.report.files import write_rendered
    from vllm_ray_compat.parity.report.read import read_report

    found = read_report(folder)
    written = write_rendered(found, output_dir or folder)
    console = result_console()
    print_report(found, console)
    for path in written:
        console.print(f"Wrote {path}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(found) if verdict_code else EXIT_HOLDS)
