"""The data files of the doctor, and the scan of a log."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat.doctor import advisories as adv
from vllm_ray_compat.doctor import logs
from vllm_ray_compat.doctor import signatures as sig
from vllm_ray_compat.schedule import RELEASES, Backend

DATA = Path(adv.__file__).parent / "data"
LINE = b"INFO 11-02 10:00:00 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s\n"


def raw(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def names(backend: Backend, vllm: str, ray: str | None = "2.60.0", **environ: str) -> set[str]:
    return {a.name for a in adv.advisories() if a.applies(backend, vllm, ray, environ)}


def test_the_files_are_read() -> None:
    assert len(adv.advisories()) == len(raw("advisories")["advisories"]) >= 15
    assert len(sig.signatures()) == len(raw("signatures")["signatures"]) >= 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"since": "0.20.9"}, "no release"),
        ({"fixed_in": "0.15.0"}, "is fixed in 0.15.0"),
        ({"ray": "around 2.54"}, "Invalid specifier"),
        ({"if_set": {"X": "("}}, "no regular expression"),
        ({"level": "problem"}, "level"),
        ({"sources": []}, "sources"),
        ({"sorce": "x"}, "Extra inputs"),
    ],
)
def test_a_mistake_in_an_advisory_is_refused(change: dict[str, Any], words: str) -> None:
    written = raw("advisories")
    written["advisories"][0] = {**written["advisories"][0], **change}
    with pytest.raises(ValueError, match=words):
        adv._File.model_validate(written)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"example": "something else"}, "does not match its own example"),
        ({"example": "two\nlines", "contains": ["two"], "pattern": None}, "more than one line"),
        ({"contains": []}, "contains"),
        ({"name": "Two words"}, "name"),
        (
            {"contains": ["R"], "pattern": None},
            "the example of .* is one of executor-line, too",
        ),
    ],
)
def test_a_mistake_in_a_signature_is_refused(change: dict[str, Any], words: str) -> None:
    written = raw("signatures")
    written["signatures"][0] = {**written["signatures"][0], **change}
    with pytest.raises(ValueError, match=words):
        sig._File.model_validate(written)


def test_nothing_is_there_twice() -> None:
    for name, model in (("advisories", adv._File), ("signatures", sig._File)):
        written = raw(name)
        written[name].append(written[name][0])
        with pytest.raises(ValueError, match="there twice"):
            model.model_validate(written)


def test_which_advisories_apply() -> None:
    assert "graph-semaphores" not in names(Backend.LEGACY, "0.19.1")
    assert "graph-semaphores" in names(Backend.LEGACY, "0.19.1", "2.54.1")
    assert "graph-semaphores" not in names(Backend.LEGACY, "0.19.1", None)
    assert "graph-semaphores" not in names(Backend.V2, "0.20.0", "2.54.1")
    assert "v2-cpu-encoder-connector" not in names(Backend.V2, "0.28.0")
    assert "v2-cpu-encoder-connector" in names(Backend.V2, "0.29.0+cpu")
    assert "v2-cpu-encoder-connector" in names(Backend.V2, "unknown"), "a fork: as the newest"
    assert "device-names" not in names(Backend.V2, "0.23.0", CUDA_VISIBLE_DEVICES="0,1")
    assert "device-names" in names(Backend.V2, "0.23.0", CUDA_VISIBLE_DEVICES="GPU-1234")
    assert "device-names" not in names(Backend.V2, "0.24.0", CUDA_VISIBLE_DEVICES="GPU-1234")
    assert "graph-time-out-without-effect" in names(
        Backend.V2, "0.32.0", RAY_CGRAPH_get_timeout="600"
    )
    for backend in Backend:
        for release in RELEASES:
            assert names(backend, release)


def test_each_example_is_found_and_nothing_else() -> None:
    log = b"".join(LINE + s.example.encode() + b"\n" for s in sig.signatures())
    result = logs.scan(io.BytesIO(log), sig.signatures())
    assert [hit.signature.name for hit in result.hits] == [s.name for s in sig.signatures()]
    assert [hit.line for hit in result.hits] == list(range(2, 2 * len(sig.signatures()) + 1, 2))
    assert {hit.count for hit in result.hits} == {1}
    assert result.lines == 2 * len(sig.signatures())


def test_an_ordinary_log_has_no_known_line() -> None:
    result = logs.scan(io.BytesIO(LINE * 1000), sig.signatures())
    assert (result.lines, result.hits) == (1000, [])


def test_a_signature_is_told_once() -> None:
    wait = b"No available shared memory broadcast block found in 60 seconds.\n"
    (hit,) = logs.scan(io.BytesIO(LINE * 3 + wait * 5), sig.signatures()).hits
    assert (hit.line, hit.count) == (4, 5)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_last_line_counts(end: bytes) -> None:
    result = logs.scan(io.BytesIO(LINE + b"code: -98, name: EADDRINUSE" + end), sig.signatures())
    assert (result.lines, result.hits[0].line) == (2, 2)
    assert result.hits[0].text == "code: -98, name: EADDRINUSE"
    assert logs.scan(io.BytesIO(b""), sig.signatures()).lines == 0


@given(
    st.lists(st.sampled_from([b"EADDRINUSE", b"x" * 40, b"", b"\xff\xfe \x1b[31mbad"]), min_size=1),
    st.integers(1, 50),
)
def test_blocks_do_not_matter(parts: list[bytes], block: int) -> None:
    """Whatever the size of the pieces in which a log arrives, the same lines are found."""
    log = b"\n".join(parts)

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or block, block))

    result = logs.scan(Slow(log), sig.signatures())
    expected = [number for number, part in enumerate(parts, 1) if part == b"EADDRINUSE"]
    assert [hit.line for hit in result.hits] == expected[:1]
    assert [hit.count for hit in result.hits] == ([len(expected)] if expected else [])
    assert result.lines == log.count(b"\n") + (0 if log.endswith(b"\n") or not log else 1)


def test_a_large_log_takes_little_memory() -> None:
    """200 MB, and one line of it without an end."""

    class Large(io.RawIOBase):
        def __init__(self) -> None:
            self._pieces: Iterator[bytes] = iter(
                [LINE * 11_000] * 100 + [b"y" * (1 << 20)] * 100 + [b"EADDRINUSE"]
            )

        def read(self, size: int = -1) -> bytes:
            return next(self._pieces, b"")

    tracemalloc.start()
    result = logs.scan(Large(), sig.signatures())  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [hit.line for hit in result.hits] == [1_100_001]
    assert peak < 20 << 20


def test_a_long_line_is_shortened() -> None:
    (hit,) = logs.scan(io.BytesIO(b"EADDRINUSE" + b"z" * 5000), sig.signatures()).hits
    assert len(hit.text) == 300
    assert hit.text.endswith("…")
