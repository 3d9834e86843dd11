"""An examination for a person."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.text import Text

from vllm_ray_compat.doctor.findings import Checked, Examination, Finding, Level
from vllm_ray_compat.parity.report.text import visible

_STYLES = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "bold yellow",
    Level.PROBLEM: "bold red",
}
_WORDS = {Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM"}
_INDENT = " " * 9


def print_examination(examination: Examination, console: Console) -> None:
    """Print the findings group by group, what was left out, and the counts last."""
    made = [checked for checked in examination.checks if not checked.left_out]
    for group, of_group in groupby(made, key=lambda checked: checked.group):
        console.print(Text(f"{group.value.capitalize()}", style="bold"))
        for checked in of_group:
            for finding in checked.findings:
                _print_finding(checked, finding, console)
    _print_left_out([c for c in examination.checks if c.left_out], console)
    told = ", ".join(
        f"{number} {level.value}{'s' * (number != 1 and level is not Level.OK)}"
        for level, number in examination.counts.items()
    )
    left = sum(bool(checked.left_out) for checked in examination.checks)
    console.print(Text(f"Found: {told}; {left} checks left out."), soft_wrap=True)


def _print_finding(checked: Checked, finding: Finding, console: Console) -> None:
    word = _WORDS.get(finding.level, finding.level.value)
    line = Text(f"{word:<8} ", style=_STYLES[finding.level])
    line.append(f"{checked.name}: ", style="bold")
    line.append(visible(finding.what), style="default")
    console.print(line, soft_wrap=True)
    rows = [
        ("where", finding.where if finding.level is not Level.OK else None),
        ("do", finding.do),
        ("source", ", ".join(finding.sources) or None),
    ]
    for name, text in rows:
        if text and not (name == "where" and text in finding.what):
            console.print(Text(f"{_INDENT}{name}: {visible(text)}"), soft_wrap=True)


def _print_left_out(left_out: list[Checked], console: Console) -> None:
    """Print each reason once, with the checks it concerns."""
    by_reason: dict[str, list[str]] = {}
    for checked in left_out:
        by_reason.setdefault(checked.left_out or "", []).append(checked.name)
    if by_reason:
        console.print(Text("Left out", style="bold"))
    for reason, names in by_reason.items():
        console.print(Text(f"{_INDENT}{', '.join(names)}: {visible(reason)}"), soft_wrap=True)
