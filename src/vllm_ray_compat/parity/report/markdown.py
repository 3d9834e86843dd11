"""``report.md``: the report as GitHub's Markdown, fit for a step summary of a CI run.

GitHub refuses a step summary of more than 1 MiB; sections that would not fit are left out, and
the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from vllm_ray_compat.parity import folder
from vllm_ray_compat.parity.backends import short_name
from vllm_ray_compat.parity.compare import differences
from vllm_ray_compat.parity.report import units
from vllm_ray_compat.parity.report.data import Arm, Report
from vllm_ray_compat.parity.report.findings import sentences
from vllm_ray_compat.parity.report.summary import LEGEND, headline, matrix, reasons
from vllm_ray_compat.parity.report.text import plain_log, shorten, visible, what_differs

#: Several reports may share one step summary of 1 MiB.
MOST_BYTES = 500_000
_MOST_DIFFERENCES = 50
_MOST_IN_A_CELL = 300
_VERDICTS = {"pass": "✅ PASS", "fail": "❌ FAIL", "inconclusive": "⚠️ INCONCLUSIVE"}
# Whatever has a meaning in GitHub's Markdown or in HTML. An underscore has none inside a word.
_MARKUP = re.compile(r"[&<>|`*~\[\]\\#$@]|:(?=\S)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\bwww\.")


def escape(text: str, most: int = _MOST_IN_A_CELL) -> str:
    r"""Return *text* so that Markdown shows it as it is, on one line, in a table cell, too.

    Markup characters become character references, which can never be markup (a backslash before
    a ``|`` can), and links of plain text are not made.
    """
    line = shorten(visible(text), most)
    shown = _MARKUP.sub(lambda m: "".join(f"&#{ord(c)};" for c in m.group()), line)
    # At the beginning of a line: list items, headings and rulers.
    return re.sub(
        r"^(\s*)([-+=]|\d+[.)](?=\s|$))",
        lambda m: m[1] + "".join(f"&#{ord(c)};" for c in m[2]),
        shown,
    )


def code(text: str, most: int = _MOST_IN_A_CELL) -> str:
    """Return *text* in a fixed-width font; in it GitHub makes no mentions of people either."""
    return f"<code>{escape(text, most)}</code>" if text else ""


def render_markdown(report: Report, most_bytes: int = MOST_BYTES) -> str:
    """Return the report as Markdown of at most *most_bytes* bytes in UTF-8."""
    sections: list[tuple[str, Callable[[Report], list[str]]]] = [
        ("Topologies and workloads", _matrix),
        ("Arms", _arms),
        ("First divergences", _divergences),
        ("Failed arms", _failures),
        ("Noise floor", _noise),
        ("Logprob differences", _gaps),
        ("Further findings", _further),
        ("Known differences", _known),
    ]
    text = f"<!-- {folder.REPORT_MARK} -->\n{_top(report)}"
    left_out: list[str] = []
    for title, render in sections:
        lines = render(report)
        if not lines:
            continue
        section = "\n".join(["", f"### {title}", "", *lines, ""])
        if len((text + section).encode()) > most_bytes - 500:  # room for the last lines
            left_out.append(title)
        else:
            text += section
    if left_out:
        text += f"\nToo long for this summary, see report.html: {', '.join(left_out)}.\n"
    return text


def _top(report: Report) -> str:
    why = reasons(report)
    most = 30
    lines = [
        f"## {_VERDICTS[report.verdict]}: parity of vLLM's Ray executors",
        "",
        escape(headline(report), 1000),
        "",
        *(f"- {reason.symbol} {escape(reason.text, 500)}" for reason in why[:most]),
        *([f"- … and {len(why) - most} more, in report.html"] if len(why) > most else []),
        "",
        f"vLLM {code(report.vllm)}, suite {code(report.suite)}, model {code(report.model)}, engine "
        f"core {code(report.engine_core)}, started {escape(report.started_at)}, took "
        f"{report.took_s:.0f} s.",
        "",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _matrix(report: Report) -> list[str]:
    made = matrix(report)
    if not made.columns or not made.workloads:
        return []
    rows = [
        [code(name), *(f"{c.cells[name].symbol} {c.cells[name].label}" for c in made.columns)]
        for name in made.workloads
    ]
    rows.append(["**verdict**", *(f"**{c.verdict.verdict.upper()}**" for c in made.columns)])
    return [
        *_table(["workload", *(escape(c.name) for c in made.columns)], rows),
        "",
        LEGEND,
    ]


def _arms(report: Report) -> list[str]:
    def row(arm: Arm) -> list[str]:
        latency = arm.latency
        return [
            escape(arm.topology),
            code(arm.label),
            code(short_name(arm.executor)) if arm.executor else "–",
            escape(arm.provider or "–"),
            escape(arm.vllm or "–"),
            units.seconds(arm.timings.engine_start_s),
            units.seconds(
                sum(arm.timings.workloads_s.values()) if arm.timings.workloads_s else None
            ),
            units.median(latency.ttft_s if latency else None),
            units.median(latency.itl_s if latency else None),
            "✓ ran" if arm.failure is None else f"✗ {escape(arm.failure.partition(':')[0])}",
        ]

    head = ["topology", "arm", "executor that ran", "provider", "vLLM", "start", "suite"]
    head += ["TTFT p50", "ITL p50", "ended"]
    return [
        *_table(head, [row(arm) for arm in report.arms]),
        "",
        "TTFT: from handing a workload's batch to the engine until a request's first token. ITL: "
        "between consecutive tokens of a request.",
    ]


def _divergences(report: Report) -> list[str]:
    found = differences(report.comparisons)
    if not found:
        return []
    rows = [
        [
            escape(c.topology),
            f"{escape(short_name(c.candidate))} vs {escape(short_name(c.reference))}",
            code(c.workload),
            code(c.request),
            code(what_differs(c)),
        ]
        for c in found[:_MOST_DIFFERENCES]
    ]
    more = len(found) - _MOST_DIFFERENCES
    return [
        *_table(["topology", "arms", "workload", "request", "what differs"], rows),
        *(["", f"… and {more} more, in report.json."] if more > 0 else []),
    ]


def _failures(report: Report) -> list[str]:
    lines: list[str] = []
    for arm in report.failures:
        lines.append(f"**{escape(arm.label)}** {escape(arm.failure or '', 2000)}")
        lines.append("")
        if arm.log_tail:
            tail = plain_log(arm.log_tail)
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", tail)), default=0))
            summary = f"The last lines of its log, {escape(arm.log)}"
            lines += [f"<details><summary>{summary}</summary>", "", f"{fence}text", tail, fence]
            lines += ["", "</details>", ""]
    return lines


def _noise(report: Report) -> list[str]:
    rows = [
        [
            escape(floor.topology),
            code(short_name(floor.reference)),
            str(floor.runs),
            str(floor.requests),
            str(len({(c.workload, c.request) for c in floor.differences})),
            str(floor.within_tolerance),
            code(what_differs(floor.differences[0])) if floor.differences else "–",
        ]
        for floor in report.noise_floor
    ]
    head = ["topology", "reference", "runs", "requests", "requests that differ"]
    head += ["answers within tolerance", "first"]
    return _table(head, rows) if rows else []


def _gaps(report: Report) -> list[str]:
    rows = [
        [
            escape(gaps.topology),
            f"{escape(short_name(gaps.candidate))} vs {escape(short_name(gaps.reference))}",
            str(gaps.compared),
            units.nats(gaps.largest),
            "–"
            if (place := gaps.largest_at) is None
            else f"{code(place.workload)} {code(place.request)} position {place.position}",
        ]
        for gaps in report.logprob_gaps
        if gaps.compared
    ]
    head = ["topology", "arms", "logprobs compared", "largest difference (nats)", "where"]
    return _table(head, rows) if rows else []


def _further(report: Report) -> list[str]:
    return [f"- {escape(sentence, most=1000)}" for sentence in sentences(report)]


def _known(report: Report) -> list[str]:
    rows = [
        [code(k.backend), escape(k.what), escape(k.effect), escape(k.source)]
        for k in report.known_differences
    ]
    return _table(["backend", "what", "effect", "source"], rows) if rows else []
