from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_ray_compat.errors import EXIT_USAGE
from vllm_ray_compat.parity import capture as cap

from .helpers import header, output, result


def _write(path: Path, *records: cap.Record) -> Path:
    with cap.CaptureWriter(path) as out:
        for record in records:
            out.write(record)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    end = cap.End(workloads_s={"w": 1.0}, shutdown_s=0.1, total_s=2.0)
    path = _write(tmp_path / "c.jsonl", header(), result(), result(request="r1"), end)
    found = cap.read_capture(path)
    assert found.results == [result(), result(request="r1")]
    assert found.end == end
    assert found.failure is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats())
def test_floats_round_trip_bit_for_bit(tmp_path: Path, value: float) -> None:
    encoded = cap.encode_float(value)
    path = _write(
        tmp_path / "c.jsonl", header(), result(outputs=[output(cumulative_logprob=encoded)])
    )
    back = cap.read_capture(path).results[0].outputs[0].cumulative_logprob
    if math.isfinite(value):
        assert isinstance(back, float)
        assert struct.pack("<d", back) == struct.pack("<d", value)
    else:
        assert isinstance(back, str)
        assert math.isnan(float(back)) if math.isnan(value) else float(back) == value


def test_a_crash_keeps_what_came_before(tmp_path: Path) -> None:
    writer = cap.CaptureWriter(tmp_path / "c.jsonl")
    writer.write(header())
    writer.write(result())
    # not closed: as after a kill
    assert cap.read_capture(tmp_path / "c.jsonl").results == [result()]
    writer.__exit__(None, None, None)


def test_every_line_is_strict_json(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "c.jsonl", header(), result(outputs=[output(text="line\nbreak \u2028")])
    )
    lines = path.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 3
    assert all(json.loads(line)["kind"] for line in lines[:2])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "the file is empty"),
        ("not json\n", ":1: expected the header of a capture"),
        ('{"kind": "header"}\n', ":1: expected the header of a capture"),
        ('{"schema": "vllm_ray_compat.capture/9"}\n', "found schema 'vllm_ray_compat.capture/9'"),
        ('{"id": 1}\n', "found something else"),
    ],
)
def test_a_foreign_file(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(cap.CaptureError) as caught:
        cap.read_capture(path)
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("line", ['{"kind": "result", "workload"', '{"kind": "nonsense"}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = _write(tmp_path / "c.jsonl", header(), result())
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(cap.CaptureError, match=r"c\.jsonl:3: not a record"):
        cap.read_capture(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(cap.CaptureError, match="cannot be read"):
        cap.read_capture(tmp_path / "none.jsonl")


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(cap.CaptureError, match=r"c\.jsonl:1: expected the header"):
        cap.read_capture(tmp_path / "c.jsonl")


def test_a_line_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "c.jsonl", header(), result())
    with path.open("ab") as file:
        file.write(b'{"kind": "\xff\xfe"}\n')
    with pytest.raises(cap.CaptureError, match=r"c\.jsonl:3: not a record"):
        cap.read_capture(path)


def test_a_folder_is_no_capture(tmp_path: Path) -> None:
    with pytest.raises(cap.CaptureError, match="it is a folder; expected a file of JSON Lines"):
        cap.read_capture(tmp_path)


@pytest.mark.parametrize(("version", "hint"), [(99, "newer vllm-ray-compat"), (1, "older")])
def test_another_version_says_what_to_do(tmp_path: Path, version: int, hint: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"schema": f"vllm_ray_compat.capture/{version}"}) + "\n")
    with pytest.raises(cap.CaptureError, match=hint):
        cap.read_capture(path)


def test_two_results_for_one_request(tmp_path: Path) -> None:
    path = _write(tmp_path / "c.jsonl", header(), result(), result())
    with pytest.raises(cap.CaptureError, match=r"c\.jsonl:3: a second result"):
        cap.read_capture(path)


def test_a_line_cut_short_is_passed_over_only_when_asked(tmp_path: Path) -> None:
    path = _write(tmp_path / "c.jsonl", header(), result())
    with path.open("a") as file:
        file.write('{"kind": "res')
    assert cap.read_capture(path, lenient_end=True).results == [result()]
    with pytest.raises(cap.CaptureError, match=r"c\.jsonl:3: not a record"):
        cap.read_capture(path)
