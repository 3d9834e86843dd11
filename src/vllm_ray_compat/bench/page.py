"""The page of results: a summary of all, then each result with its plot and its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_ray_compat.bench.conclude import claims
from vllm_ray_compat.bench.report import markdown
from vllm_ray_compat.bench.result import Bench
from vllm_ray_compat.bench.tables import interval_text, label, told
from vllm_ray_compat.parity.report.markdown import escape


def title(bench: Bench) -> str:
    """Return what a result is of: kind, arms, topologies, release and platform."""
    names = [arm.name for arm in bench.arms if arm.role != "floor"]
    arms = ", ".join(dict.fromkeys(names))
    versions = {arm.about.versions.get("vllm", "") for arm in bench.arms if arm.role != "floor"}
    where = f"{len(bench.machine.gpus)} × {bench.machine.gpus[0]}" if bench.machine.gpus else "CPU"
    how = "" if bench.engines == "fresh" else ", engines kept"
    core = ", engine core a process" if bench.engine_core == "process" else ""
    what = f"{bench.kind}, {', '.join(bench.comparisons)}: {arms}"
    return f"{what}, vLLM {', '.join(sorted(versions))}, {where}{how}{core}"


def summary(results: Mapping[str, Bench]) -> str:
    """Return a table of every claim of every result."""
    rows = [
        "| result | topology | candidate / reference | metric | ratio | 95 % interval | |",
        "|---|---|---|---|---:|---:|---|",
    ]
    for name, bench in results.items():
        reference = next(arm.name for arm in bench.arms if arm.role == "reference")
        for topology, comparisons in bench.comparisons.items():
            rows += [
                f"| [{escape(name)}](#{_anchor(title(bench))}) | {topology} "
                f"| {escape(one.candidate)} / {escape(reference)} | {escape(label(one.metric))} "
                f"| {one.ratio:.3f} | {interval_text(one)} | {told(one)} |"
                for one in claims(comparisons)
            ]
    return "\n".join(rows)


def page(results: Mapping[str, Bench], folder: str) -> str:
    """Return the results as Markdown.

    Args:
        results: by name; ``NAME.json`` and ``NAME.svg`` are in *folder*.
        folder: relative to the page.
    """
    return "\n\n".join(_sections(results, folder))


def _sections(results: Mapping[str, Bench], folder: str) -> Iterator[str]:
    for name, bench in results.items():
        yield markdown(bench, title(bench)).strip()
        yield f"![Losses of all passes]({folder}/{name}.svg)"
        yield f"Every turn: [{name}.json]({folder}/{name}.json)"


def _anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading: lower case, blanks as hyphens, no signs."""
    kept = (c for c in heading.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")
