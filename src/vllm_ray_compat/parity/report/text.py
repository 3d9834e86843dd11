"""Texts of models and users, made safe to show, and the sentence that describes a difference."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.parity.compare import Comparison

MOST_CHARACTERS = 100


def visible(text: str, keep: str = "") -> str:
    r"""Return *text* with every character that does not print written as its escape (``\x1b``).

    Those are control characters (terminal escapes and what XML forbids among them), lone
    surrogates, invisible and direction-changing characters, and line ends.

    Args:
        text: any text.
        keep: characters to leave as they are, for example ``"\n"``.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return *text*, or as much of it as *most* characters hold with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def plain_log(lines: list[str]) -> str:
    """Return the lines of a log without the colours and cursor movements of a terminal."""
    from rich.text import Text

    return "\n".join(visible(Text.from_ansi(line).plain, keep="\t") for line in lines)


def show(value: Any, most: int = MOST_CHARACTERS) -> str:
    """Return a value of a capture for a person, on one line; the same before and after JSON."""
    return shorten(visible(repr(_without_tuples(value))), most)


def _without_tuples(value: Any) -> Any:
    return [_without_tuples(v) for v in value] if isinstance(value, (list, tuple)) else value


def at(position: int | None) -> str:
    """Return `` at position N``, or nothing where there is no position."""
    return "" if position is None else f" at position {position}"


def describe(comparison: Comparison) -> str:
    """Return one line for a difference: where, which field, both values."""
    pair = f"{comparison.topology} {comparison.reference} vs {comparison.candidate}, "
    return visible(pair) + describe_request(comparison)


def describe_request(comparison: Comparison) -> str:
    """Return the same without topology and arms."""
    return visible(
        f"workload {comparison.workload}, request {comparison.request}: {what_differs(comparison)}"
    )


def what_differs(comparison: Comparison) -> str:
    """Return which field of a request differs, and both values, on one line."""
    first = comparison.first_divergence
    field = visible(comparison.field)
    if first is None:
        return field
    if comparison.field in ("present", "rank"):
        missing = comparison.candidate if first.reference else comparison.reference
        return f"missing from {visible(missing)}{at(first.position)}"
    output = f" of output {first.output}" if first.output else ""
    return (
        f"{field}{output}{at(first.position)}: {show(first.reference)} became "
        f"{show(first.candidate)}"
    )
