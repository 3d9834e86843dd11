"""Scan a log for signatures, in one pass and in little memory, whatever its size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from vllm_ray_compat.doctor.signatures import Signature

_BLOCK_BYTES = 1 << 20
#: A line that is longer is looked at in parts of this size, and counts as one line.
_LONGEST_LINE = 1 << 20
_SHOWN_CHARACTERS = 300


@dataclass
class Hit:
    """How often a signature was seen, and where first."""

    signature: Signature
    line: int
    text: str
    count: int = 1


@dataclass
class Scan:
    """What a log holds: how many lines, and the signatures in the order of their first line."""

    lines: int
    hits: list[Hit]


def scan(log: BinaryIO, signatures: Sequence[Signature]) -> Scan:
    """Scan *log* to its end.

    Args:
        log: opened for bytes; need not be seekable. What is no UTF-8 is replaced.
        signatures: each is told once.
    """
    # Almost no line of a log is one: whole blocks are passed over by searching them for each text.
    texts = [(s, [text.encode() for text in s.contains]) for s in signatures]
    found: dict[str, Hit] = {}
    before = 0
    ends_with_newline = True
    for block in _blocks(log):
        present = [s for s, needles in texts if any(needle in block for needle in needles)]
        if present:
            _look(block, before, present, found)
        before += block.count(b"\n")
        ends_with_newline = block.endswith(b"\n")
    lines = before if ends_with_newline else before + 1
    return Scan(lines, sorted(found.values(), key=lambda hit: hit.line))


def _blocks(log: BinaryIO) -> Iterator[bytes]:
    """Yield the log in pieces that end with a line, but for lines that are too long."""
    rest = b""
    while piece := log.read(_BLOCK_BYTES):
        held = rest + piece
        end = held.rfind(b"\n") + 1
        if end == 0 and len(held) > _LONGEST_LINE:
            end = len(held)
        if end:
            yield held[:end]
        rest = held[end:]
    if rest:
        yield rest


def _look(block: bytes, before: int, present: list[Signature], found: dict[str, Hit]) -> None:
    for number, raw in enumerate(block.split(b"\n"), start=before + 1):
        line = raw.decode("utf-8", errors="replace")
        for signature in present:
            if not signature.matches(line):
                continue
            hit = found.get(signature.name)
            if hit is None:
                found[signature.name] = Hit(signature, number, _shown(line))
            else:
                hit.count += 1


def _shown(line: str) -> str:
    text = line.strip()
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
