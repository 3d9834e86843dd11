"""The forms of a report: they say the same, in full, and no text in them does anything."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt
from rich.console import Console

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import folder
from vllm_ray_compat.parity.capture import NotRun
from vllm_ray_compat.parity.compare import Comparison, Divergence, Total
from vllm_ray_compat.parity.noise import judge_kept
from vllm_ray_compat.parity.report.console import print_report
from vllm_ray_compat.parity.report.data import Report, known_of
from vllm_ray_compat.parity.report.files import write_rendered, write_report
from vllm_ray_compat.parity.report.html import render_html
from vllm_ray_compat.parity.report.junit import render_junit
from vllm_ray_compat.parity.report.markdown import escape, render_markdown
from vllm_ray_compat.parity.report.read import ReportError, read_report
from vllm_ray_compat.parity.report.summary import LEGEND, Reason, headline, matrix, reasons
from vllm_ray_compat.parity.report.text import plain_log, visible

from . import reports
from .test_cli import cli, refused

FORMS = ["junit.xml", "report.html", "report.json", "report.md"]


@pytest.fixture(scope="module")
def passing() -> Report:
    return reports.passing()


@pytest.fixture(scope="module")
def failing() -> Report:
    return reports.failing()


def console(report: Report, **settings: Any) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=120, **settings))
    return out.getvalue()


# -- what they say -------------------------------------------------------------------------------


def test_matrix(failing: Report) -> None:
    made = matrix(failing)
    assert made.workloads == list(reports.WORKLOADS)
    states = {c.name: [c.cells[w].state for w in made.workloads] for c in made.columns}
    assert states == {
        "tp2 v2": ["equal", "different", "different", "equal"],
        "tp2 mp": ["equal"] * 4,
        "pp2 v2": ["noise", "equal", "equal", "equal"],
        "pp2 mp": ["noise", "equal", "equal", "equal"],
        "tp2pp2 v2": ["not compared"] * 4,
    }
    assert made.columns[0].cells["seeded"].label == "1 of 5 differ"
    assert made.columns[2].cells["greedy"].label == "noise in 1 of 4"
    assert "tp2pp2-candidate-v2 failed" in made.columns[4].cells["greedy"].why


def test_a_difference_in_a_noisy_request_alone_is_noise() -> None:
    right, wrong, again = reports.results(1), reports.results(1), reports.results(1)
    wrong[0].outputs[0].text += "?"
    again[0].outputs[0].text += "!"
    report = reports.Builder().topology("tp2", right, {"v2": wrong}, again).report()
    assert report.verdict == "inconclusive"
    assert matrix(report).columns[0].cells["greedy"].state == "noise"
    assert [r.kind for r in reasons(report)] == ["open", "open"]
    case = next(iter(next(iter(JUnitXml.fromstring(render_junit(report))))))
    assert isinstance(case.result[0], Skipped)
    assert "'?'" in str(case.system_out)


def test_reasons_name_the_worst_first(failing: Report) -> None:
    found = reasons(failing)
    kinds = [r.kind for r in found]
    assert kinds == sorted(kinds, key=("against", "open", "for").index)
    text = "\n".join(r.text for r in found)
    assert "Arm tp2pp2-candidate-v2 failed: crash: killed by SIGSEGV" in text
    assert (
        "tp2: v2 against legacy: 4 of 14 requests differ. First: workload seeded, request r1: "
        "token_ids at position 11: 8 became 9"
    ) in text
    assert "pp2: legacy against itself, 2 runs: differs in 1 of 14 requests." in text
    assert "tp2pp2: no noise floor" in text
    assert headline(failing) == (
        "4 of 56 answers differ from the reference's and 1 of 10 arms failed."
    )


def test_reasons_of_a_pass(passing: Report) -> None:
    assert {r.kind for r in reasons(passing)} == {"for"}
    assert "All 84 answers" in headline(passing)


def test_junit_of_a_pass(passing: Report) -> None:
    document = JUnitXml.fromstring(render_junit(passing))
    suites = list(document)
    assert [s.name for s in suites] == [
        f"{t} {c}" for t in ("tp2", "pp2", "tp2pp2") for c in ("v2", "mp")
    ]
    for suite in suites:
        assert [case.name for case in suite] == list(reports.WORKLOADS)
        assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 0, 0, 0)
    text = render_junit(passing).decode()
    assert text.count("Known difference: legacy has no async scheduling") == 6
    assert 'value="vllm.v1.executor.ray_executor_v2:RayExecutorV2"' in text


def test_junit_of_a_failure(failing: Report) -> None:
    suites = {s.name: s for s in JUnitXml.fromstring(render_junit(failing))}
    counts = {n: (s.tests, s.failures, s.errors, s.skipped) for n, s in suites.items()}
    assert counts == {
        "tp2 v2": (4, 2, 0, 0),
        "tp2 mp": (4, 0, 0, 0),
        "pp2 v2": (4, 0, 0, 1),
        "pp2 mp": (4, 0, 0, 1),
        "tp2pp2 v2": (5, 0, 1, 4),
    }
    seeded = {case.name: case for case in suites["tp2 v2"]}["seeded"]
    (failure,) = seeded.result
    assert isinstance(failure, Failure)
    for word in ("request r1", "token_ids", "position 11", "8 became 9"):
        assert word in str(failure.text)
    arm, *skipped = suites["tp2pp2 v2"]
    assert arm.name == "arm tp2pp2-candidate-v2"
    assert isinstance(arm.result[0], Error)
    assert "SIGSEGV" in str(arm.result[0].message)
    assert arm.system_err == "ERROR worker 3 died\nFatal Python error: Segmentation fault"
    for case in skipped:
        assert case.result[0].message == "not compared: arm tp2pp2-candidate-v2 failed"


def test_what_is_tolerated_or_known_is_never_called_equal() -> None:
    report = reports.accepting()
    assert report.verdict == "pass"
    v2, mp = matrix(report).columns
    cells = {name: (cell.state, cell.symbol, cell.label) for name, cell in v2.cells.items()}
    assert cells == {
        "greedy": ("equal", "✓", "4 equal"),
        "seeded": ("known", "◊", "1 of 5 known"),
        "logprobs": ("within tolerance", "±", "2 of 3 within tolerance"),
        "chunked-prefill": ("equal", "✓", "2 equal"),
    }
    assert v2.cells["seeded"].why == "it rounds otherwise (vllm#1)"
    assert {cell.state for cell in mp.cells.values()} == {"equal"}
    assert headline(report) == (
        "No answer of the candidates differs from the reference's by more than was declared: "
        "25 of 28 are identical, 2 equal within a declared tolerance, 1 different as declared, and "
        "the reference is identical to itself."
    )
    assert [r.text for r in reasons(report) if "v2 against" in r.text] == [
        "tp2: v2 against legacy: 1 of 14 known, 2 of 14 within tolerance, the others identical."
    ]
    text = console(report)
    assert "1 of 14 known, 2 of 14 within tolerance" in text
    assert "2 of 14 requests are within tolerance, not equal." in text
    assert "1 of 14 requests differ, and only as declared." in text
    rows = rows_of(render_markdown(report))[0]
    assert rows[2][:3] == ["seeded", "◊ 1 of 5 known", "✓ 5 equal"]
    assert rows[3][:3] == ["logprobs", "± 2 of 3 within tolerance", "✓ 3 equal"]
    assert LEGEND in render_markdown(report)
    page = page_of(report).text
    for words in ("◊1 of 5 known", "±2 of 3 within tolerance", "not equal.", LEGEND):
        assert words in page


def test_junit_of_what_is_tolerated_or_known() -> None:
    suite = next(iter(JUnitXml.fromstring(render_junit(reports.accepting()))))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 0, 0, 0)
    said = {case.name: str(case.system_out or "").splitlines() for case in suite}
    assert said["greedy"] == []
    assert said["seeded"][0] == "1 of 5 known"
    assert said["seeded"][1].startswith("known: tp2 legacy vs v2, workload seeded, request r1: tok")
    assert said["seeded"][1].endswith(": 8 became 9 (it rounds otherwise (vllm#1))")
    assert said["logprobs"][0] == "2 of 3 within tolerance"
    assert len(said["logprobs"]) == 3


def test_a_headline_says_of_the_reference_what_was_measured(passing: Report) -> None:
    assert headline(passing).endswith("bit for bit, and the reference is identical to itself.")
    unknown = passing.model_copy(update={"noise_floor": passing.noise_floor[:1]})
    assert headline(unknown).endswith("identical to the reference's, bit for bit.")
    floors = [f.model_copy(update={"within_tolerance": 2}) for f in passing.noise_floor]
    tolerated = passing.model_copy(update={"noise_floor": floors})
    assert headline(tolerated).endswith("the reference agrees with itself within that tolerance.")
    assert "14 requests, 0 differences, 2 answers within tolerance." in console(tolerated)
    assert "│ 2 within tolerance " in console(tolerated)
    assert (
        "equal in 14 requests, 2 answers of them only within tolerance" in page_of(tolerated).text
    )
    assert rows_of(render_markdown(tolerated))[2][1][4:6] == ["0", "2"]


def test_reasons_name_ranks_placed_otherwise_and_what_was_not_compared(passing: Report) -> None:
    placed = passing.comparisons[0].model_copy(
        update={"workload": "(placement)", "request": "rank 1", "result": "different"}
    )
    verdicts = [v.model_copy(update={"not_compared": 3}) for v in passing.topologies[:1]]
    update = {"placement": [placed], "topologies": [*verdicts, *passing.topologies[1:]]}
    found = reasons(passing.model_copy(update=update))
    assert found[:2] == [
        Reason("against", "tp2: v2 against legacy: placed otherwise: rank 1."),
        Reason("open", "tp2: v2 against legacy: 3 requests were not compared."),
    ]
    assert {r.kind for r in found[2:]} == {"for"}


def test_a_request_that_is_known_and_within_tolerance_counts_once() -> None:
    report = reports.accepting()
    kept = [c for c in report.comparisons if (c.workload, c.candidate) == ("seeded", "v2")]
    (known,) = [c for c in kept if c.result == "known"]
    kept.append(known.model_copy(update={"field": "logprobs", "result": "within-tolerance"}))
    pair = known.model_dump(include={"topology", "reference", "candidate", "workload"})
    totals = [
        Total(**pair, field="token_ids", equal=4, known=1),
        Total(**pair, field="logprobs", equal=4, within_tolerance=1),
        Total(**pair, field="present", equal=5),
    ]
    assert judge_kept([], kept, totals).label == "1 of 5 known"


def test_of_more_than_was_kept_one_by_one_the_least_is_told() -> None:
    report = reports.accepting()
    total = {**report.comparisons[0].model_dump(include={"topology", "reference", "candidate"})}
    kept = [c for c in report.comparisons if (c.workload, c.candidate) == ("logprobs", "v2")]

    def judged(**counts: int) -> str:
        totals = [Total(**total, workload="logprobs", field="logprobs", **counts)]
        totals.append(Total(**total, workload="logprobs", field="present", equal=900))
        return judge_kept([], kept, totals).label

    assert judged(equal=898, within_tolerance=2) == "2 of 900 within tolerance"
    assert judged(equal=200, within_tolerance=700) == "at least 700 of 900 within tolerance"
    assert judged(equal=200, within_tolerance=2, known=698).startswith("at least 698 of 900 known")
    assert judged(equal=200, different=700) == "at least 700 of 900 differ"


SLEEP = NotRun(
    workload="sleep", requests=3, platform="cpu", why="it has no sleep mode", source="cpu_worker.py"
)


def test_a_workload_that_cannot_run_here_is_in_every_form(passing: Report) -> None:
    report = reports.leaving_out(passing, SLEEP)
    told = "cpu cannot run it: it has no sleep mode (cpu_worker.py)"
    made = matrix(report)
    assert made.workloads == [*reports.WORKLOADS, "sleep"]
    for column in made.columns:
        cell = column.cells["sleep"]
        assert (cell.state, cell.symbol, cell.label) == ("cannot run here", "⊘", "cannot run here")
        assert column.cells["greedy"].state == "equal"
    assert headline(report).endswith("1 of 5 workloads was not run: sleep (it has no sleep mode).")
    assert reasons(report)[0] == Reason("open", f"Workload sleep was not run: {told}.")
    assert f"Not run: workload sleep (3 requests): {told}.\n" in console(report)
    page = page_of(report).text
    assert "1 of 5 workloads was not run" in page
    assert "⊘cannot run here" in page
    workloads = rows_of(render_markdown(report))[0]
    assert workloads[5] == ["sleep", *["⊘ cannot run here"] * 6]
    for suite in JUnitXml.fromstring(render_junit(report)):
        assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (5, 0, 0, 1)
        (skipped,) = next(case for case in suite if case.name == "sleep").result
        assert skipped.message == f"cannot run here: {told}"


def test_what_a_backend_cannot_run_is_a_known_difference_in_every_form(passing: Report) -> None:
    one = NotRun(
        workload="embeds", requests=2, backend="legacy", why="no graph for it", source="vllm#1"
    )
    (known,) = known_of([one, SLEEP])
    report = reports.leaving_out(passing, one)
    report = report.model_copy(update={"known_differences": [known]})
    cell = matrix(report).columns[0].cells["embeds"]
    assert (cell.state, cell.symbol, cell.label) == ("known difference", "⊘", "known difference")
    assert headline(report).endswith("1 of 5 workloads was not run: embeds (no graph for it).")
    (line,) = [line for line in console(report).splitlines() if "embeds" in line]
    assert line == (
        "Known difference: legacy cannot run workload embeds: no graph for it; workload embeds was "
        "not run (vllm#1)."
    )
    row = ["legacy", "cannot run workload embeds: no graph for it"]
    row += ["workload embeds was not run", "vllm#1"]
    assert rows_of(render_markdown(report))[-1][1] == row
    assert rows_of(render_markdown(report))[0][5][1] == "⊘ known difference"
    assert "".join(row) in page_of(report).text.replace("\n", "")
    for suite in JUnitXml.fromstring(render_junit(report)):
        (skipped,) = next(case for case in suite if case.name == "embeds").result
        assert skipped.message == (
            "known difference: legacy cannot run it: no graph for it (vllm#1)"
        )
    text = render_junit(report).decode()
    assert text.count("Known difference: legacy cannot run workload embeds") == 6


def test_workloads_left_out_for_one_reason_are_told_together(failing: Report) -> None:
    other = SLEEP.model_copy(update={"workload": "wake"})
    report = reports.leaving_out(failing, SLEEP, other)
    assert headline(report) == (
        "4 of 56 answers differ from the reference's and 1 of 10 arms failed. "
        "2 of 6 workloads were not run: sleep, wake (it has no sleep mode)."
    )


def test_a_report_from_before_it_named_them_is_read(passing: Report, tmp_path: Path) -> None:
    data = passing.to_json()
    del data["not_run"]
    for verdict in data["topologies"]:
        del verdict["not_run"]
    (tmp_path / "report.json").write_text(json.dumps(data))
    assert read_report(tmp_path) == passing


def test_junit_names_an_arm_of_a_topology_without_a_candidate() -> None:
    failed = reports.failed_arm("tp2", "legacy", "reference", "environment: no GPU", [])
    report = reports.Builder().report(arms=[failed], environment_failure=True)
    (suite,) = JUnitXml.fromstring(render_junit(report))
    assert (suite.tests, suite.errors) == (1, 1)


def rows_of(markdown: str) -> list[list[list[str]]]:
    """The tables of a document as GitHub reads it: rows of the texts of their cells."""
    tables: list[list[list[str]]] = []
    cell = False
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            tables[-1].append([])
        elif token.type in ("th_open", "td_open"):
            cell = True
        elif token.type == "inline" and cell:
            parts = [
                c.content
                for c in token.children or []
                if c.type in ("text", "text_special", "softbreak")
            ]
            tables[-1][-1].append("".join(parts))
            cell = False
    return tables


def test_markdown(failing: Report) -> None:
    text = render_markdown(failing)
    assert "## ❌ FAIL" in text
    tables = rows_of(text)
    workloads, arms, divergences, noise, gaps, known = tables
    assert workloads[0] == ["workload", "tp2 v2", "tp2 mp", "pp2 v2", "pp2 mp", "tp2pp2 v2"]
    assert workloads[2][:3] == ["seeded", "✗ 1 of 5 differ", "✓ 5 equal"]
    assert workloads[-1] == ["verdict", "FAIL", "PASS", "INCONCLUSIVE", "INCONCLUSIVE", "FAIL"]
    assert arms[2][1:3] == ["tp2-candidate-v2", "RayExecutorV2"]
    latency = failing.arms[1].latency
    assert latency is not None
    assert latency.ttft_s is not None
    assert arms[2][7] == f"{latency.ttft_s.p50 * 1000:.1f} ms"
    assert divergences[1] == [
        *("tp2", "v2 vs legacy", "seeded", "r1"),
        "token_ids at position 11: 8 became 9",
    ]
    assert noise[2][4:] == ["1", "0", "text at position 24: 'end' became '!'"]
    assert gaps[2][:4] == ["tp2", "v2 vs legacy", "648", "0.84"]
    assert known[1][0] == "legacy"
    assert "Fatal Python error: Segmentation fault" in text


def test_markdown_is_never_too_long_for_a_step_summary() -> None:
    one = reports.Builder().topology(
        "tp2", reports.results(), {"v2": reports.results()}, reports.results()
    )
    differs = Comparison(
        **{
            **one.comparisons[0].model_dump(),
            "field": "num_cached_tokens",
            "result": "different",
            "first_divergence": Divergence(reference=0, candidate=7),
        }
    )
    one.comparisons = [
        differs.model_copy(update={"workload": f"w{'x' * 250}{w}", "request": f"r{'y' * 250}{r}"})
        for w in range(2000)
        for r in range(2)
    ]
    one.verdicts[0] = one.verdicts[0].model_copy(update={"requests": 4000, "different": 4000})
    report = one.report(verdict="fail")
    text = render_markdown(report)
    assert len(text.encode()) <= 500_000
    assert "✗ tp2: v2 against legacy: 4000 of 4000 requests differ" in text
    assert "see report.html: Topologies and workloads." in text
    assert "First divergences" in text


# -- hostile texts -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=reports.HOSTILE, ids=ascii)
def hostile(request: pytest.FixtureRequest) -> tuple[str, Report]:
    return request.param, reports.hostile(request.param)


@pytest.fixture(scope="module")
def harmless() -> Report:
    """The same report with a text that means nothing anywhere: what the others must look like."""
    return reports.hostile("harmless")


@pytest.fixture(scope="module")
def harmless_page(harmless: Report) -> Page:
    return page_of(harmless)


class Page(HTMLParser):
    """Collects elements, attributes and text of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(report: Report) -> Page:
    page = Page()
    page.feed(render_html(report))
    page.close()
    return page


def test_html_shows_hostile_texts_and_nothing_of_them_is_markup(
    hostile: tuple[str, Report],
) -> None:
    text, report = hostile
    harmless = reports.hostile("harmless")
    page, expected = page_of(report), page_of(harmless)
    assert page.elements == expected.elements
    assert [n for n, _ in page.attributes] == [n for n, _ in expected.attributes]
    shown = visible(text, keep="\n")
    assert page.text.count(shown) >= 15
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066]", page.text)


def test_html_loads_nothing(failing: Report) -> None:
    page = page_of(failing)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.elements)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "xlink:href"):
            assert value.startswith("#")
    text = render_html(failing)
    assert "url(http" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    urls = set(re.findall(r"https?://[^\"' <]+", text))
    assert urls == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_html_has_the_plots_and_each_line_its_legend(failing: Report) -> None:
    text = render_html(failing)
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    titles = [re.findall(r"<figcaption>(.*?)</figcaption>", f)[0] for f in figures]
    assert titles == [
        *(f"{t}: {w}" for t in ("tp2", "pp2", "tp2pp2") for w in
          ("time to first token", "time between tokens")),
        *(f"{t}: logprob difference by position" for t in ("tp2", "pp2")),
    ]  # fmt: skip
    for figure in figures:
        plot, legend = figure.split('<ul class="legend">')
        strokes = re.findall(
            r"stroke: (var\(--[a-z0-9-]+\)); stroke-width: 2; stroke-dasharray", legend
        )
        assert strokes
        for stroke in strokes:
            assert f"stroke: {stroke}" in plot
        assert "#0a0b" not in figure
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert len(text) < 400_000


def test_html_of_a_user_with_other_plot_settings(
    passing: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    usual = render_html(passing)
    with matplotlib.rc_context({"svg.fonttype": "path", "axes.facecolor": "red", "font.size": 30}):
        assert render_html(passing) == usual


def test_markdown_shows_hostile_texts_and_nothing_of_them_is_markup(
    hostile: tuple[str, Report], harmless: Report
) -> None:
    text, report = hostile
    tables = rows_of(render_markdown(report))
    expected = rows_of(render_markdown(harmless))
    assert [[len(row) for row in table] for table in tables] == [
        [len(row) for row in table] for table in expected
    ]
    shown = visible(text)
    assert tables[0][1][0] == shown
    assert tables[2][1][3] == f"r0 {shown}"
    kinds = {
        child.type
        for token in MarkdownIt("commonmark", {"html": True})
        .enable("table")
        .parse(render_markdown(report))
        for child in token.children or []
    }
    assert kinds <= {
        "text",
        "text_special",
        "html_inline",
        "strong_open",
        "strong_close",
        "softbreak",
    }
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(render_markdown(report))
    page = Page()
    page.feed(html)
    assert set(page.elements) <= {
        *("h2", "h3", "p", "ul", "li", "strong", "code", "pre", "details", "summary"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }


@pytest.mark.parametrize(
    "text", ["1. one", "2) two", "- a", "+ b", "=== c", "# d", "> e", "0.32.0"]
)
def test_markdown_blocks_do_not_begin(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(f"before\n{escape(text)}")
    assert [t.type for t in tokens] == ["paragraph_open", "inline", "paragraph_close"]


def test_junit_shows_hostile_texts_and_is_xml(
    hostile: tuple[str, Report], harmless: Report
) -> None:
    text, report = hostile
    root = ET.fromstring(render_junit(report))  # expat: refuses what XML forbids
    expected = ET.fromstring(render_junit(harmless))
    assert [e.tag for e in root.iter()] == [e.tag for e in expected.iter()]
    names = [case.get("name") for case in root.iter("testcase")]
    assert names[0] == visible(text)
    assert next(iter(JUnitXml.fromstring(render_junit(report)))).failures == 2


def test_console_shows_hostile_texts_and_controls_no_terminal(
    hostile: tuple[str, Report], harmless: Report
) -> None:
    text, report = hostile
    plain = console(report, no_color=True)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066]", plain)
    assert f"Left behind: {visible(text)}\n" in plain
    coloured = console(report, force_terminal=True, color_system="standard")
    rest = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert "\x1b" not in rest
    assert "\x9b" not in rest
    assert len(below_the_table(plain)) == len(below_the_table(console(harmless)))


def below_the_table(text: str) -> list[str]:
    return text.partition("┘\n")[2].splitlines()


def test_json_holds_hostile_texts_as_they_are(hostile: tuple[str, Report], tmp_path: Path) -> None:
    text, report = hostile
    write_report(report, tmp_path)
    again = read_report(tmp_path)
    assert again == report
    assert again.left_behind == [text]


def test_logs_lose_their_colours_and_nothing_else() -> None:
    lines = ["\x1b[31mE\x1b[0m one", "two\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\tthree\x00"]
    assert plain_log(lines) == "E one\ntwolink\n\tthree\\x00"


# -- files ---------------------------------------------------------------------------------------


def test_a_run_writes_all_forms_and_the_next_removes_them(passing: Report, tmp_path: Path) -> None:
    where = folder.prepare(tmp_path / "report")
    assert sorted(p.name for p in write_report(passing, where)) == FORMS
    (where / "notes.md").write_text("mine")
    folder.prepare(where)
    assert sorted(p.name for p in where.iterdir()) == [folder.MARKER, "notes.md"]


def test_rendering_again_gives_the_same_bytes(failing: Report, tmp_path: Path) -> None:
    write_report(failing, tmp_path)
    first = {name: (tmp_path / name).read_bytes() for name in FORMS}
    for name in FORMS:
        if name != "report.json":
            (tmp_path / name).unlink()
    write_rendered(read_report(tmp_path), tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in FORMS} == first


def test_without_a_package_the_other_forms_are_written(
    passing: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_ray_compat.parity.report import files

    real = files.importlib.util.find_spec
    monkeypatch.setattr(
        files.importlib.util, "find_spec", lambda n: None if n == "matplotlib" else real(n)
    )
    assert files.missing_packages() == {"report.html": "matplotlib"}
    assert sorted(p.name for p in write_report(passing, tmp_path)) == [
        n for n in FORMS if n != "report.html"
    ]


@pytest.mark.parametrize("name", ["report.md", "report.html", "junit.xml"])
def test_a_file_of_somebody_else_is_not_replaced(
    passing: Report, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path / name} was not written by")):
        write_rendered(passing, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


def test_rendered_files_are_known_as_ours(passing: Report, tmp_path: Path) -> None:
    """An artifact of a CI run has no hidden files, so the folder's marker is not there."""
    write_rendered(passing, tmp_path)
    write_rendered(passing, tmp_path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(passing: Report, tmp_path: Path) -> None:
    write_report(passing, tmp_path)
    (tmp_path / "report.md.part").mkdir()
    before = (tmp_path / "report.md").read_bytes()
    with pytest.raises(UsageError, match=r"report\.md cannot be written"):
        write_report(passing, tmp_path)
    assert (tmp_path / "report.md").read_bytes() == before


# -- reading back --------------------------------------------------------------------------------


def _damaged(report: Report, **changes: Any) -> str:
    return json.dumps({**report.to_json(), **changes})


def test_bad_reports(passing: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arms = passing.to_json()["arms"]
    arms[1]["executer"] = "x"
    cases: list[tuple[bytes | str, list[str]]] = [
        ("", [f"{path}:1:1: not JSON"]),
        ('{\n "schema": "vllm_ray_compat.report/2",\n oops', [f"{path}:3:2: not JSON"]),
        (b'{"schema": "\xff"}', ["byte 12 is not UTF-8"]),
        ("[1, 2]", ["schema: expected 'vllm_ray_compat.report/2', found none"]),
        ('{"schema": ["x"]}', ["found ['x']"]),
        (_damaged(passing, schema="other/1"), ["found 'other/1'."]),
        (_damaged(passing, schema="vllm_ray_compat.report/3"), ["It is newer"]),
        (_damaged(passing, schema="vllm_ray_compat.report/1"), ["It is older"]),
        (_damaged(passing, verdict="PASS"), ["verdict: Input should be 'pass', 'fail'"]),
        (_damaged(passing, arms=arms), ["arms.1.executer: Extra inputs are not permitted"]),
        (_damaged(passing, **{"x\x1b[2J\ny": 1}), ["x\\x1b[2J\\ny: Extra inputs"]),
        ("[" * 100_000, ["nested too deeply"]),
    ]
    for content, words in cases:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ReportError) as caught:
            read_report(tmp_path)
        message = str(caught.value)
        assert "\n" not in message
        assert "vllm_ray_compat.report/2" in message
        for word in [str(path), *words]:
            assert word in message


def test_no_report(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"has no file report\.json"):
        read_report(tmp_path)
    with pytest.raises(ReportError, match="is not a folder"):
        read_report(tmp_path / "nothing")


# -- the command ---------------------------------------------------------------------------------


def test_report_command(failing: Report, tmp_path: Path) -> None:
    write_report(failing, tmp_path)
    before = (tmp_path / "report.html").read_bytes()
    for name in ("report.md", "report.html", "junit.xml"):
        (tmp_path / name).unlink()
    done = cli("parity", "report", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Verdict: FAIL" in done.stdout
    assert f"Wrote {tmp_path / 'report.html'}" in done.stdout
    assert (tmp_path / "report.html").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == FORMS


def test_report_command_elsewhere_and_with_the_exit_code_of_the_run(
    failing: Report, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    write_report(failing, tmp_path / "a")
    (tmp_path / "a" / "report.md").write_text("untouched")
    done = cli(
        *("parity", "report", str(tmp_path / "a"), "--exit-code"),
        *("--output-dir", str(tmp_path / "b" / "c")),
    )
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "a" / "report.md").read_text() == "untouched"
    assert sorted(p.name for p in (tmp_path / "b" / "c").iterdir()) == [
        n for n in FORMS if n != "report.json"
    ]


def test_report_command_refuses(tmp_path: Path) -> None:
    refused(cli("parity", "report", str(tmp_path)), 2, "has no file report.json", "parity run")
    (tmp_path / "report.json").write_text('{"schema": "vllm_ray_compat.report/9"}')
    refused(cli("parity", "report", str(tmp_path)), 2, "report.json: schema: expected", "newer")
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_an_executor_given_as_a_class_is_found_by_the_name_it_is_compared_under(
    passing: Report, failing: Report
) -> None:
    """``module:Class`` is asked for, ``Class`` is compared; the forms have to bring them together."""

    def renamed(report: Report) -> Report:
        data = report.to_json()
        for arm in data["arms"]:
            if arm["backend"] == "v2":
                arm["backend"], arm["name"] = "some.module:RayExecutorV2", "OurV2"
        for one in (*data["topologies"], *data["comparisons"], *data["logprob_gaps"]):
            if one["candidate"] == "v2":
                one["candidate"] = "OurV2"
        return Report.model_validate(data)

    assert console(renamed(passing)).count("identical (") == console(passing).count("identical (")
    executors = 'name="executor tp2-candidate-v2"'
    assert executors in render_junit(passing).decode()
    assert executors in render_junit(renamed(passing)).decode()
    blamed = {c.name.split()[-1]: len(c.failed) for c in matrix(renamed(failing)).columns}
    assert blamed["OurV2"] == 1


def test_a_workload_of_which_no_request_is_kept_one_by_one_is_not_called_uncompared(
    passing: Report,
) -> None:
    """Reports keep a bounded number of equal comparisons; their totals have all."""
    told = {(c.topology, c.candidate, c.workload): 0 for c in passing.comparisons}
    for c in passing.comparisons:
        told[c.topology, c.candidate, c.workload] += c.field == "present"
    data = passing.to_json()
    data["totals"] = [
        {
            "topology": topology,
            "reference": "legacy",
            "candidate": candidate,
            "workload": workload,
            "field": "present",
            "equal": count,
        }
        for (topology, candidate, workload), count in told.items()
    ]
    data["comparisons"] = []
    cells = [
        cell
        for column in matrix(Report.model_validate(data)).columns
        for cell in column.cells.values()
    ]
    expected = [cell for column in matrix(passing).columns for cell in column.cells.values()]
    assert [(c.state, c.requests) for c in cells] == [(c.state, c.requests) for c in expected]
    assert {c.state for c in cells} == {"equal"}
