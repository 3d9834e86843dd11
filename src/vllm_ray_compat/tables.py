"""The tables of the documentation, generated from the code (a test fails when they drift)."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_ray_compat import schedule
from vllm_ray_compat.executors.repairs import REPAIRS
from vllm_ray_compat.flag import Flag, FlagValue
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import Decision, select
from vllm_ray_compat.settings import SPECS, Settings


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns, readable in a terminal, too."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [head, ["-" * width for width in widths], *rows]
    ]
    return "\n".join(lines)


def schedule_table() -> str:
    """Return the phase schedule."""
    return table(
        ("vLLM", "phase", "flag unset", "ships legacy", "ships V2", "RFC text"),
        [
            (
                schedule.span(row),
                str(int(row.phase)),
                row.default.value,
                "yes" if Backend.LEGACY in row.ships else "no",
                "yes" if Backend.V2 in row.ships else "no",
                row.rfc,
            )
            for row in schedule.SCHEDULE
        ],
    )


def decision_table() -> str:
    """Return what runs in each phase for each value of the flag."""
    rows = []
    for row in schedule.SCHEDULE:
        release = str(row.since)
        off = _cell(select(release, flag=Flag(FlagValue.OFF), settings=Settings()))
        restored = _cell(
            select(release, flag=Flag(FlagValue.OFF), settings=Settings(restore_legacy=True))
        )
        if restored != off:
            off += f"; with RAYCOMPAT_RESTORE_LEGACY=1: {restored}"
        rows.append(
            (
                str(int(row.phase)),
                _cell(select(release, flag=Flag(), settings=Settings())),
                off,
                _cell(select(release, flag=Flag(FlagValue.ON), settings=Settings())),
            )
        )
    return table(("phase", "flag unset", "flag off (0)", "flag on (1)"), rows)


def _cell(decision: Decision) -> str:
    text = f"{decision.backend.value} ({decision.provider})"
    for warning in decision.warnings:
        text += f" + {type(warning).__name__}"
    return text + (" + note: drop the flag" if any("drop it" in n for n in decision.notes) else "")


def repairs_table() -> str:
    """Return the repairs of the executors that vLLM ships."""
    return table(
        ("name", "executor", "vLLM", "without it", "what it does", "reported"),
        [
            (
                f"`{repair.name}`",
                " and ".join(sorted(backend.value for backend in repair.backends)),
                repair.releases(),
                repair.symptom,
                ("Refusal. " if repair.refuses else "") + repair.effect,
                ", ".join(f"[{_report_name(url)}]({url})" for url in repair.reports)
                or "here: " + ", ".join(repair.defects),
            )
            for repair in REPAIRS
        ],
    )


def _report_name(url: str) -> str:
    """Return ``vllm#38602`` for the address of an issue or a pull request on GitHub."""
    *_, project, _, number = url.split("/")
    return f"{project}#{number}"


def settings_table() -> str:
    """Return the ``RAYCOMPAT_*`` variables."""
    return table(
        ("variable", "accepts", "meaning"),
        [(f"`{spec.name}`", spec.accepts, spec.meaning) for spec in SPECS],
    )
