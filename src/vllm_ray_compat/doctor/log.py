"""The check of a log."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_ray_compat.doctor.context import Context
from vllm_ray_compat.doctor.findings import Finding, ok
from vllm_ray_compat.doctor.logs import scan
from vllm_ray_compat.doctor.signatures import signatures


def known_lines(context: Context) -> Iterator[Finding]:
    """Tell each signature that the log holds once: where first, how often, what it means."""
    assert context.options.log is not None  # a check that needs a log is run with one alone
    log, name = context.options.log
    result = scan(log, signatures())
    if not result.hits:
        yield ok(f"{result.lines} lines, and none that is known", name, lines=result.lines)
    for hit in result.hits:
        times = f", {hit.count} times" if hit.count > 1 else ""
        yield Finding(
            level=hit.signature.level,
            what=f"{hit.text!r}{times}: {hit.signature.cause}",
            where=f"{name}, line {hit.line}",
            do=hit.signature.do,
            sources=hit.signature.sources,
            details={
                "signature": hit.signature.name,
                "line": hit.line,
                "count": hit.count,
                "text": hit.text,
            },
        )
