"""The documents of the project, as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands_of(name: str) -> list[str]:
    """Return the commands of a document: the lines that begin with ``$ `` in its console blocks.

    A backslash at the end of a line continues it.
    """
    found: list[str] = []
    for block in re.findall(r"```console\n(.*?)```", read(name), re.DOTALL):
        text = block.replace("\\\n", " ")
        found += [
            " ".join(line.removeprefix("$ ").split())
            for line in text.splitlines()
            if line.startswith("$ ")
        ]
    return found


def generated(name: str, section: str) -> str:
    """Return what stands between the markers of a generated section."""
    match = re.search(
        rf"<!-- generated: {section} -->\n(.*?)\n<!-- /generated -->", read(name), re.DOTALL
    )
    assert match is not None, f"{name} has no generated section {section!r}"
    return match.group(1).strip()
