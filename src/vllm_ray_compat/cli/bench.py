"""What ``bench control-plane`` and ``bench decode`` share: options, the run, the exit code."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vllm_ray_compat.cli.parity_run import error_console, result_console, watched
from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_HOLDS, RaycompatError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from vllm_ray_compat.bench.baseline import Against as Found
    from vllm_ray_compat.bench.plan import BenchPlan, Options
    from vllm_ray_compat.bench.result import Bench

Reference = Annotated[
    str,
    typer.Option(help="mp, legacy, v2 or module:Class; v2@PYTHON runs it in that environment."),
]
Candidate = Annotated[
    list[str] | None,
    typer.Option(help="As --reference; repeatable. Default: those of v2, legacy and mp left."),
]
EngineArg = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A vLLM engine argument for all arms; repeatable."),
]
Model = Annotated[
    str, typer.Option(help="'tiny', a folder, or a model in the local Hugging Face cache.")
]
Passes = Annotated[
    int,
    typer.Option(min=1, help="How often each arm is measured; six or more give an interval."),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep/--fresh",
        help="Keep the engines, side by side: many more passes in the same time, but starts are "
        "measured once, and the intervals are those of these engines.",
    ),
]
AtMost = Annotated[
    float,
    typer.Option(min=1, help="Seconds after which no further pass of a topology begins."),
]
Margin = Annotated[float, typer.Option(help="The loss that counts as none: 0.01 is 1 %.")]
ArmTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds for a start, and for each measurement.")
]
ReportDir = Annotated[
    Path, typer.Option(help="Where bench.json, bench.md, bench.svg and the logs are written.")
]
SaveBaseline = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the result there, for --against.")
]
Against = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Exit with 1 on a loss beyond the baseline's interval."),
]
RequireNoOverhead = Annotated[
    bool,
    typer.Option(help="Exit with 1 unless no overhead is shown for every claimed metric."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


#: Say where something goes, not what is measured; and paths are nobody else's.
_NOT_TOLD = ("--report-dir", "--save-baseline", "--against")


def command(argv: Sequence[str]) -> str:
    """Return what to enter to measure this again, on another machine, too.

    Args:
        argv: what was entered, without the name of the program.
    """
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        option, equals, _ = word.partition("=")
        if option in _NOT_TOLD:
            if not equals:
                next(words, None)
        elif option != "--json":
            kept.append(re.sub(r"@.*[/\\].*", "@PYTHON", word))
    return shlex.join(["vllm-ray-compat", *kept])


def others_than(reference: str) -> tuple[str, ...]:
    """Return the candidates where none is named."""
    return tuple(backend for backend in ("v2", "legacy", "mp") if backend != reference)


def measure(
    options: Options,
    *,
    save_baseline: Path | None,
    against: Path | None,
    require_no_overhead: bool,
    as_json: bool,
) -> None:
    """Run the benchmark, print its result, and exit.

    Raises:
        typer.Exit: always: 0, or 1 for a regression or what ``require_no_overhead`` wants.
        RaycompatError: it cannot be run, or an arm died.
    """
    from vllm_ray_compat.bench import baseline as base
    from vllm_ray_compat.bench import result
    from vllm_ray_compat.bench.plan import plan
    from vllm_ray_compat.bench.report import missing_packages, write_rendered
    from vllm_ray_compat.parity.report.files import write_whole

    # Before minutes of measuring, not after them.
    earlier = result.read(against) if against is not None else None
    if earlier is not None and earlier.kind != options.kind:
        raise UsageError(
            f"{against} is a result of `bench {earlier.kind}`, not of `bench {options.kind}`."
        )
    if save_baseline is not None and not save_baseline.absolute().parent.is_dir():
        raise UsageError(f"--save-baseline {save_baseline}: its folder does not exist.")
    checked = plan(options)
    console = error_console()
    for form, package in missing_packages().items():
        _warn(
            console,
            f"{form} will not be written, because the package {package!r} is not installed: "
            "pip install 'vllm-ray-compat[cli]'.",
        )
    bench = _run(checked, console)
    write_rendered(bench, options.report_dir)
    if save_baseline is not None:
        write_whole(save_baseline, bench.to_json())
    if as_json:
        typer.echo(bench.to_json(), nl=False)
    else:
        _print(bench, options.report_dir)
    failed = False
    if earlier is not None:
        failed = _tell_against(base.against(bench, earlier), against, console)
    if require_no_overhead:
        failed |= _tell_overheads(bench, console)
    raise typer.Exit(EXIT_DIFFERENCE if failed else EXIT_HOLDS)


def _run(checked: BenchPlan, console: Console) -> Bench:
    from vllm_ray_compat.bench.run import run

    try:
        return watched(checked, partial(run, command=command(sys.argv[1:])))
    except RaycompatError:
        if (checked.report_dir / "bench.json").exists():
            console.print(
                f"The turns until then are in {checked.report_dir / 'bench.json'}.",
                markup=False,
                soft_wrap=True,
            )
        raise


def _print(bench: Bench, folder: Path) -> None:
    from rich.table import Table

    from vllm_ray_compat.bench.tables import explanation, headline, tables

    console = result_console()

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for line in headline(bench):
        tell(line)
    for one in tables(bench):
        table = Table(title=one.title, title_justify="left")
        for number, column in enumerate(one.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in one.rows:
            table.add_row(*row)
        console.print(table, markup=False)
    tell(explanation(bench))
    tell(f"All turns: {folder / 'bench.json'}")


def _tell_against(found: Found, file: Path | None, console: Console) -> bool:
    for remark in found.remarks:
        _warn(console, remark)
    for regression in found.regressions:
        console.print(f"Regression: {regression}", markup=False, soft_wrap=True)
    if not found.regressions:
        console.print(
            f"No regression against {file} in {found.compared} metrics.",
            markup=False,
            soft_wrap=True,
        )
    return bool(found.regressions)


def _tell_overheads(bench: Bench, console: Console) -> bool:
    from vllm_ray_compat.bench.conclude import claims
    from vllm_ray_compat.bench.tables import told

    unproven = [
        f"{topology} {one.candidate} {one.metric}: {told(one)}"
        for topology, comparisons in bench.comparisons.items()
        for one in claims(comparisons)
        if not one.verdict.proves_no_overhead
    ]
    for line in unproven:
        console.print(f"No overhead is not shown: {line}", markup=False, soft_wrap=True)
    return bool(unproven)


def _warn(console: Console, text: str) -> None:
    console.print(f"Warning: {text}", markup=False, soft_wrap=True)
