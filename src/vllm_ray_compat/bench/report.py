"""Write a result: ``bench.json`` first and after every turn, then Markdown and the plot."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from vllm_ray_compat.bench.result import Bench
from vllm_ray_compat.bench.tables import Table, explanation, headline, tables
from vllm_ray_compat.parity.report.files import write_whole
from vllm_ray_compat.parity.report.markdown import escape

JSON, MARKDOWN, PLOT = "bench.json", "bench.md", "bench.svg"
#: What a form needs beyond what a run needs.
_PACKAGES = {MARKDOWN: "jinja2", PLOT: "matplotlib"}


def missing_packages() -> dict[str, str]:
    """Return the forms that cannot be written here, and the package that each wants."""
    return {f: p for f, p in _PACKAGES.items() if importlib.util.find_spec(p) is None}


def write_rendered(bench: Bench, where: Path) -> None:
    """Write the forms that are made of a result into the folder *where*; see missing_packages.

    Raises:
        UsageError: a file cannot be written.
    """
    missing = missing_packages()
    if MARKDOWN not in missing:
        write_whole(where / MARKDOWN, markdown(bench, f"bench {bench.kind}"))
    if PLOT not in missing:
        from vllm_ray_compat.bench.plot import plot

        write_whole(where / PLOT, plot(bench))


def markdown(bench: Bench, title: str) -> str:
    """Return the result as Markdown, below a heading of the third level."""
    import jinja2

    text = resources.files(__package__).joinpath("templates/bench.md.j2").read_text("utf-8")
    # Markdown, not HTML: every text goes through `escape`.
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)
    rendered: str = template.render(
        title=escape(title),
        headline=[escape(line) for line in headline(bench)],
        command=bench.command,
        tables=list(_escaped(tables(bench))),
        explanation=escape(explanation(bench)),
    )
    return rendered + "\n"


def _escaped(found: Iterable[Table]) -> Iterable[Table]:
    for table in found:
        yield Table(
            escape(table.title),
            [escape(text) for text in table.columns],
            [[escape(text) for text in row] for row in table.rows],
        )
