"""The plot of a result: every pass's ratio, the interval of the median, and the margin."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from vllm_ray_compat.bench.conclude import Comparison, claims
from vllm_ray_compat.bench.metrics import metric, of_what
from vllm_ray_compat.bench.result import Bench

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW = 0.34  # of an inch
_WORSE, _BETTER = "#b3261e", "#1b6e53"
_INK, _DOTS, _MARGIN = "#202124", "#8a8f98", "#dfe8f7"


def plot(bench: Bench) -> str:
    """Return an SVG: a panel for each topology, a row for each claimed metric of each candidate.

    Losses, so that further right is worse for every metric: 1.02 is 2 % slower, or 2 % less a
    second.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = {topology: claims(comparisons) for topology, comparisons in bench.comparisons.items()}
    rows = sum(len(panel) + 2 for panel in panels.values()) or 1
    # The same result gives the same file.
    with mpl.rc_context({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8.5, 0.8 + _ROW * rows), layout="constrained")
        axes = figure.subplots(
            max(len(panels), 1),
            squeeze=False,
            gridspec_kw={"height_ratios": [len(p) + 2 for p in panels.values()] or [1]},
        )
        for panel, (topology, comparisons) in zip(axes[:, 0], panels.items(), strict=False):
            _draw(panel, topology, comparisons, bench.margin)
        figure.supxlabel("loss against the reference: right of 1 is worse", fontsize=9)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _draw(axes: Axes, topology: str, comparisons: list[Comparison], margin: float) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

    axes.axvspan(1 / (1 + margin), 1 + margin, color=_MARGIN, lw=0)
    axes.axvline(1, color=_INK, lw=0.8)
    labels = []
    for row, one in enumerate(comparisons):
        losses = list(map(one.loss, one.ratios))
        axes.plot(losses, [row] * len(losses), "|", color=_DOTS, ms=7, mew=0.9)
        if one.loss_interval is not None:
            axes.plot(one.loss_interval, [row, row], color=_INK, lw=1.6)
        middle = one.loss(one.ratio)
        axes.plot([middle], [row], "o", color=_WORSE if middle > 1 + margin else _BETTER, ms=5)
        labels.append(f"{one.candidate}  {of_what(one.metric)}  {metric(one.metric).label}")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.3, -0.7)
    axes.set_title(topology, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
