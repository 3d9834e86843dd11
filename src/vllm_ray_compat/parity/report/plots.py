"""The plots of ``report.html``, as SVG elements to be put into the page.

No text of a model or a user is drawn: names stand in the page's own legend, where they are
escaped. Colours are the page's (CSS variables), so that a plot follows its light and dark theme;
every line differs in its dashes, too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
#: Stand for the page's variables while matplotlib draws, which knows no variables.
_INK, _GRID = "#010203", "#010204"
_COLOURS = {_INK: "var(--muted)", _GRID: "var(--line)"}
#: The lines' colours (variables of the page) and dashes, in SVG's units.
STROKES: tuple[tuple[str, str], ...] = (
    ("var(--series-1)", "none"),
    ("var(--series-2)", "7 3"),
    ("var(--series-3)", "7 3 2 3"),
    ("var(--series-4)", "12 4"),
    ("var(--series-5)", "3 2"),
)
#: The reference, and the reference again.
REFERENCE_STROKE = ("var(--ink)", "none")
AGAIN_STROKE = ("var(--ink)", "2 3")

Stroke = tuple[str, str]


@dataclass(frozen=True)
class Line:
    """One line of a plot: its stroke, and points; a y of None is a gap in it."""

    stroke: Stroke
    x: Sequence[float]
    y: Sequence[float | None]


def plot_latencies(lines: Sequence[Line], of: str, alt: str) -> str:
    """Return cumulative distributions: x in milliseconds, y the share that was at most that long.

    Args:
        lines: one for each arm, rising.
        of: what is counted, for the y axis.
        alt: what the plot shows, for those who do not see it.
    """
    with _settings(alt):
        return _plot_latencies(lines, of, alt)


def _plot_latencies(lines: Sequence[Line], of: str, alt: str) -> str:
    figure, axes = _figure()
    positive = [x for line in lines for x in line.x if x > 0]
    if positive and max(positive) > 20 * min(positive):
        # Linear below the smallest positive value: tokens of one step are 0 apart.
        axes.set_xscale("symlog", linthresh=_power_below(min(positive)), linscale=0.3)
        axes.xaxis.set_minor_locator(_no_ticks())
    axes.xaxis.set_major_formatter(_plain_numbers())
    _draw(axes, lines)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("milliseconds")
    axes.set_ylabel(f"share of {of}")
    return _svg(figure, lines, alt)


def plot_gaps(lines: Sequence[Line], alt: str) -> str:
    """Return the largest difference of logprobs (nats) by token position."""
    with _settings(alt):
        return _plot_gaps(lines, alt)


def _plot_gaps(lines: Sequence[Line], alt: str) -> str:
    above = [y for line in lines for y in line.y if y]
    figure, axes = _figure(height=2.7 if above else 1.3)
    if above:
        threshold = _power_below(min(above))
        axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
        axes.yaxis.set_minor_locator(_no_ticks())
        axes.set_ylim(-threshold / 4, max(above) * 3)
        axes.yaxis.set_major_formatter(_plain_numbers())
    else:
        axes.set_ylim(-1, 1)
        axes.set_yticks([0], ["0"])
    _draw(axes, lines, marker="o" if max(len(line.x) for line in lines) <= 64 else "")
    axes.set_xlabel("token position")
    axes.set_ylabel("largest difference, nats" if above else "nats")
    axes.xaxis.set_major_locator(_whole_numbers())
    return _svg(figure, lines, alt)


@contextlib.contextmanager
def _settings(salt: str) -> Iterator[None]:
    """Use matplotlib's defaults, whatever the user's own are; ids differ between salts."""
    import matplotlib

    # What it says of fonts and cache folders is no business of whoever reads a report.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": salt})
        yield


def _figure(height: float = 2.7) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes: Axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.tick_params(colors=_INK, length=0, labelsize=9)
    axes.xaxis.label.set(color=_INK, size=9)
    axes.yaxis.label.set(color=_INK, size=9)
    return figure, axes


def _draw(axes: Axes, lines: Sequence[Line], marker: str = "") -> None:
    for index, line in enumerate(lines):
        colour = f"#0a0b{index:02x}"
        y = [math.nan if value is None else value for value in line.y]
        # One point makes no line.
        mark = marker or ("o" if len(line.x) == 1 else "")
        (drawn,) = axes.plot(line.x, y, color=colour, linewidth=1.8, marker=mark, markersize=3)
        drawn.set_gid(f"line-{index}")


def _svg(figure: Figure, lines: Sequence[Line], alt: str) -> str:
    """Write the figure, and make it an element of the page: no ids, no size of its own."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    for child in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(child)
    _dash(root, lines)
    used = {
        value.rpartition("#")[2].rstrip(")")
        for element in root.iter()
        for name, value in element.attrib.items()
        if value.startswith("url(#") or name == f"{{{_XLINK}}}href"
    }
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    title = ET.Element(f"{{{_SVG}}}title")
    title.text = alt
    root.insert(0, title)
    ET.register_namespace("", _SVG)
    ET.register_namespace("xlink", _XLINK)
    text = ET.tostring(root, encoding="unicode")
    for index, line in enumerate(lines):
        text = text.replace(f"#0a0b{index:02x}", line.stroke[0])
    for colour, variable in _COLOURS.items():
        text = text.replace(colour, variable)
    return text


def _dash(root: ET.Element, lines: Sequence[Line]) -> None:
    """Give each line its dashes, the same as in the page's legend."""
    for index, line in enumerate(lines):
        group = root.find(f".//{{{_SVG}}}g[@id='line-{index}']")
        path = None if group is None else group.find(f"{{{_SVG}}}path")
        if path is not None and line.stroke[1] != "none":
            path.set("style", f"{path.get('style', '')}; stroke-dasharray: {line.stroke[1]}")


def _power_below(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value)))


def _plain_numbers() -> Any:
    """Return a formatter of ticks: ``0.001``, ``1e-07``."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:g}")


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=8, integer=True, min_n_ticks=1)


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
