"""The tables of docs/doctor.md, generated from the code and the data files."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_ray_compat.doctor.advisories import Advisory, advisories
from vllm_ray_compat.doctor.registry import CHECKS
from vllm_ray_compat.doctor.signatures import signatures
from vllm_ray_compat.tables import table


def checks_table() -> str:
    """Return every check."""
    return table(
        ("group", "check", "asks", "needs"),
        [
            (
                check.group.value,
                f"`{check.name}`",
                check.asks,
                ", ".join(need.value for need in sorted(check.needs, key=lambda n: n.name))
                or "nothing",
            )
            for check in CHECKS
        ],
    )


def advisories_table() -> str:
    """Return the defects and pitfalls that no repair puts right."""
    return table(
        ("name", "executor", "applies to", "what one sees", "what to do", "source"),
        [
            (
                f"`{advisory.name}`",
                " and ".join(sorted(backend.value for backend in advisory.backends)),
                _range(advisory),
                _cell(advisory.symptom),
                _cell(advisory.do),
                _sources(advisory.sources),
            )
            for advisory in advisories()
        ],
    )


def _range(advisory: Advisory) -> str:
    parts = [f"vLLM ≥ {advisory.since}"]
    if advisory.fixed_in is not None:
        parts.append(f"< {advisory.fixed_in}")
    if advisory.ray is not None:
        parts.append(f"Ray {advisory.ray}")
    if advisory.if_set:
        parts.append(f"with {' or '.join(f'`{name}`' for name in advisory.if_set)}")
    return ", ".join(parts)


def signatures_table() -> str:
    """Return the lines by which a log tells something."""
    return table(
        ("name", "level", "a line such as", "it is", "what to do", "source"),
        [
            (
                f"`{signature.name}`",
                signature.level.value,
                _code(signature.example.strip()),
                _cell(signature.cause),
                _cell(signature.do),
                _sources(signature.sources),
            )
            for signature in signatures()
        ],
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    quotes, space = ("``", " ") if "`" in text else ("`", "")
    return f"{quotes}{space}{_cell(text)}{space}{quotes}"


def _sources(sources: Iterable[str]) -> str:
    return ", ".join(_link(source) if source.startswith("https:") else source for source in sources)


def _link(url: str) -> str:
    """Return a link that is named ``vllm#38602`` where it leads to GitHub."""
    parts = url.split("/")
    name = f"{parts[4]}#{parts[6]}" if parts[2] == "github.com" else parts[2]
    return f"[{name}]({url})"
