"""``report.html``: one file that needs nothing else, for the person who decides.

The template escapes every value; only the plots, which hold no text of a model or a user, are
put in as they are. The page forbids itself scripts and any load from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm_ray_compat.parity import folder
from vllm_ray_compat.parity.backends import short_name
from vllm_ray_compat.parity.compare import differences
from vllm_ray_compat.parity.latency import Distribution
from vllm_ray_compat.parity.report import plots, units
from vllm_ray_compat.parity.report.data import Arm, LogprobGaps, Report
from vllm_ray_compat.parity.report.findings import sentences
from vllm_ray_compat.parity.report.summary import LEGEND, headline, matrix, reasons
from vllm_ray_compat.parity.report.text import plain_log, visible, what_differs

_MOST_DIFFERENCES = 200
_MOST_REASONS = 60
_MOST_SENTENCES = 200
#: A plot is up to 30 KB.
_MOST_PLOTS = 40


@dataclass(frozen=True)
class Figure:
    """A plot with its title, and its legend: the stroke and name of each line."""

    title: str
    svg: str
    legend: tuple[tuple[plots.Stroke, str], ...]
    note: str = ""


def render_html(report: Report) -> str:
    """Return the report as one HTML page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters.update(short=short_name, log=plain_log)
    found = differences(report.comparisons)
    why = reasons(report)
    further = list(sentences(report))
    return environment.get_template("report.html.j2").render(
        report=report,
        mark=folder.REPORT_MARK,
        headline=headline(report),
        reasons=why[:_MOST_REASONS],
        more_reasons=max(0, len(why) - _MOST_REASONS),
        matrix=matrix(report),
        legend_of_marks=LEGEND,
        about={workload.name: workload.about for workload in report.workloads},
        differences=found[:_MOST_DIFFERENCES],
        more_differences=max(0, len(found) - _MOST_DIFFERENCES),
        what_differs=what_differs,
        latencies=_latency_figures(report)[:_MOST_PLOTS],
        gaps=_gap_figures(report)[:_MOST_PLOTS],
        units=units,
        sentences=further[:_MOST_SENTENCES],
        more_sentences=max(0, len(further) - _MOST_SENTENCES),
    )


def _printable(value: Any) -> Any:
    """Show invisible characters of a text as escapes; texts marked as safe stay (the plots)."""
    return visible(value, keep="\n\t") if type(value) is str else value


def _groups(report: Report) -> list[tuple[str, list[Arm]]]:
    """Return the arms that share a topology and the suite's engine options, with their title."""
    found: dict[tuple[str, str], list[Arm]] = {}
    for arm in report.arms:
        found.setdefault((arm.topology, arm.profile), []).append(arm)
    return [(_title(topology, profile), arms) for (topology, profile), arms in found.items()]


def _title(topology: str, profile: str) -> str:
    return topology if profile == "default" else f"{topology}, profile {profile}"


def _strokes(arms: Sequence[Arm]) -> list[tuple[Arm, plots.Stroke]]:
    candidates = [arm.label for arm in arms if arm.role == "candidate"]
    fixed = {"reference": plots.REFERENCE_STROKE, "reference-again": plots.AGAIN_STROKE}
    return [
        (arm, fixed.get(arm.role) or _candidate_stroke(candidates.index(arm.label))) for arm in arms
    ]


def _candidate_stroke(index: int) -> plots.Stroke:
    return plots.STROKES[index % len(plots.STROKES)]


def _name(arm: Arm) -> str:
    roles = {"reference": ", the reference", "reference-again": ", the reference again"}
    return short_name(arm.name) + roles.get(arm.role, "")


def _latency_figures(report: Report) -> list[Figure]:
    from markupsafe import Markup

    figures: list[Figure] = []
    for title, arms in _groups(report):
        for attribute, what, of in (
            ("ttft_s", "time to first token", "requests"),
            ("itl_s", "time between tokens", "tokens"),
        ):
            drawn: list[tuple[plots.Line, str]] = []
            for arm, stroke in _strokes(arms):
                measured = getattr(arm.latency, attribute) if arm.latency else None
                if measured is not None:
                    drawn.append((_cumulative(measured, stroke), _name(arm)))
            if drawn:
                svg = plots.plot_latencies(
                    [line for line, _ in drawn],
                    of,
                    f"Cumulative distribution of the {what}, figure {len(figures) + 1}; its "
                    "percentiles are in the table of latencies.",
                )
                legend = tuple((line.stroke, name) for line, name in drawn)
                figures.append(Figure(f"{title}: {what}", Markup(svg), legend))
    return figures


def _cumulative(measured: Distribution, stroke: plots.Stroke) -> plots.Line:
    steps = max(len(measured.quantiles) - 1, 1)
    shares = [i / steps for i in range(len(measured.quantiles))]
    if len(shares) == 1:
        shares = [1.0]
    return plots.Line(stroke, [1000 * s for s in measured.quantiles], shares)


def _gap_figures(report: Report) -> list[Figure]:
    from markupsafe import Markup

    groups: dict[tuple[str, str], list[LogprobGaps]] = {}
    for gaps in report.logprob_gaps:
        if gaps.compared:
            groups.setdefault((gaps.topology, gaps.profile), []).append(gaps)
    figures: list[Figure] = []
    for (topology, profile), pairs in groups.items():
        candidates = [p.candidate for p in pairs if not _is_again(p)]
        drawn: list[tuple[plots.Line, str]] = []
        for pair in pairs:
            stroke = (
                plots.AGAIN_STROKE
                if _is_again(pair)
                else _candidate_stroke(candidates.index(pair.candidate))
            )
            x = [i * pair.positions_per_value for i in range(len(pair.by_position))]
            name = f"{short_name(pair.candidate)} against {short_name(pair.reference)}"
            drawn.append((plots.Line(stroke, x, pair.by_position), name))
        svg = plots.plot_gaps(
            [line for line, _ in drawn],
            f"Largest difference of logprobs by token position, figure {len(figures) + 1}; the "
            "largest of all are in the table below it.",
        )
        figures.append(
            Figure(
                f"{_title(topology, profile)}: logprob difference by position",
                Markup(svg),
                tuple((line.stroke, name) for line, name in drawn),
                "" if any(p.largest for p in pairs) else "0 at every position.",
            )
        )
    return figures


def _is_again(gaps: LogprobGaps) -> bool:
    return gaps.candidate == f"{gaps.reference} again"
