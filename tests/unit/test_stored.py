"""Captures on disk are compared without being held in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.documents import ROOT
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.align import align
from vllm_ray_compat.parity.compare import ALL, FIELDS, Compared, Keep, compare, compare_sources
from vllm_ray_compat.parity.faults import inject, write_capture
from vllm_ray_compat.parity.noise import judge_pairs
from vllm_ray_compat.parity.stored import InMemory, Key, StoredCapture, same_but_for_times
from vllm_ray_compat.parity.synthetic import synthetic_capture

from .helpers import capture, result


def stored(tmp_path: Path, given: cap.Capture, name: str, shuffle: Random | None = None) -> Path:
    write_capture(given, tmp_path / name, shuffle)
    return tmp_path / name


def compared(left: Path, right: Path, keep: Keep = ALL) -> Compared:
    with StoredCapture(left, lenient_end=True) as a, StoredCapture(right, lenient_end=True) as b:
        return compare_sources(a.header.topology, a, b, keep=keep)


@pytest.mark.parametrize("kind", ["token", "missing", "extra", "order", "nan"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_from_disk_and_from_memory_the_same_is_found(
    tmp_path: Path, kind: str, shuffled: bool
) -> None:
    good = synthetic_capture()
    altered, _ = inject(good, kind, Random(3))
    found = compared(
        stored(tmp_path, good, "a.jsonl"),
        stored(tmp_path, altered, "b.jsonl", Random(1) if shuffled else None),
    )
    assert found.comparisons == compare("tp2pp2", good, altered, "synthetic")


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    good = synthetic_capture()
    with StoredCapture(stored(tmp_path, good, "a.jsonl", Random(5))) as found:
        assert list(found.results) == good.results
        assert (found.header, found.engine, found.end) == (good.header, good.engine, good.end)
        assert found.count == len(good.results)
        assert not found.partial


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_pairs_by_definition(order: list[int], lost: set[int], late: set[int]) -> None:
    left = [i for i in range(6) if i not in lost]
    right = [i for i in order if i not in late]
    pairs = list(
        align(
            InMemory(capture(result("other", "z"), *(result("w", f"r{i}") for i in left))),
            InMemory(capture(result("other", "z"), *(result("w", f"r{i}") for i in right))),
        )
    )[1:]
    pairs = [p for p in pairs if p.key.workload == "w"]
    names = [p.key.request for p in pairs]
    assert names == [f"r{i}" for i in left] + [f"r{i}" for i in right if i not in left]
    shared_left = [i for i in left if i in right]
    shared_right = [i for i in right if i in left]
    for pair in pairs:
        i = int(pair.key.request[1:])
        assert (pair.left is not None, pair.right is not None) == (i in left, i in right)
        assert pair.position == (left.index(i) if i in left else right.index(i))
        if i in left and i in right:
            assert pair.left_rank == shared_left.index(i)
            assert pair.right_rank == shared_right.index(i)


def test_a_second_result_is_named_with_its_line(tmp_path: Path) -> None:
    good = stored(tmp_path, capture(), "a.jsonl")
    twice = stored(tmp_path, capture(result(), result("w", "r1"), result()), "b.jsonl")
    with pytest.raises(cap.CaptureError, match=r"b\.jsonl:4: a second result for workload w"):
        compared(good, twice)


def test_a_result_that_is_none_is_named_with_its_line(tmp_path: Path) -> None:
    good = stored(tmp_path, capture(), "a.jsonl")
    bad = tmp_path / "b.jsonl"
    lines = good.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"index": 0', '"index": "first"')
    bad.write_text("".join(lines))
    with pytest.raises(cap.CaptureError, match=r"b\.jsonl:3: not a record .*index"):
        compared(good, bad)


@pytest.mark.parametrize(
    "change",
    [
        ('"num_cached_tokens": 0', '"num_cached_tokens": 1'),
        ('"token_times_s": [0.5, 1.0]', '"token_times_s": [0.5, "x"]'),
        ('"token_times_s": [0.5, 1.0]', '"token_times_s": [0.5, 1.0'),
        ('"token_times_s": [0.5, 1.0]', '"token_times_s": nul'),
        ('"preemptions": null', '"preemptions": 1'),
        ('"text": "abcd"', '"text": "abc"'),
    ],
)
def test_lines_that_are_not_the_same_but_for_times(change: tuple[str, str]) -> None:
    data = result(token_times_s=[0.5, 1.0]).model_dump(mode="json")
    line = json.dumps(data)
    assert change[0] in line
    assert not same_but_for_times(line.encode(), line.replace(*change).encode())


def test_lines_that_are_the_same_but_for_times() -> None:
    def line(times: list[float] | None) -> bytes:
        # Its own name in a text must not be taken for the key.
        made = result(request='x", "token_times_s": [1], "', token_times_s=times)
        return json.dumps(made.model_dump(mode="json")).encode() + b"\n"

    assert same_but_for_times(line([0.5, 1.0]), line([0.25]))
    assert same_but_for_times(line(None), line([0.25]))
    assert not same_but_for_times(line(None), None)


def test_an_interrupted_arm_is_no_difference_and_no_pass(tmp_path: Path) -> None:
    good = stored(tmp_path, synthetic_capture(), "a.jsonl")
    cut = tmp_path / "b.jsonl"
    cut.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    found = compared(good, cut)
    assert not found.different
    assert found.not_compared
    assert found.partial
    assert judge_pairs([], [found]) == "inconclusive"
    assert judge_pairs([], [compared(cut, good)]) == "inconclusive"


def test_an_interrupted_arm_that_differs_fails(tmp_path: Path) -> None:
    altered, _ = inject(synthetic_capture(), "token")
    good = stored(tmp_path, synthetic_capture(), "a.jsonl")
    bad = stored(tmp_path, altered, "b.jsonl")
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    assert judge_pairs([], [compared(good, bad)]) == "fail"


def test_totals_count_what_is_not_kept(tmp_path: Path) -> None:
    altered, _ = inject(synthetic_capture(), "token")
    for at, one in enumerate(altered.results):
        if at % 2 and one.outputs:
            one.outputs[0].text += "!"
    paths = (
        stored(tmp_path, synthetic_capture(), "a.jsonl"),
        stored(tmp_path, altered, "b.jsonl"),
    )
    whole, short = compared(*paths), compared(*paths, Keep(equal=10, others=2, requests=3))
    assert whole.totals == short.totals
    assert whole.equal_left_out == whole.others_left_out == 0
    assert len(short.comparisons) == 12
    assert short.equal_left_out + short.others_left_out == len(whole.comparisons) - 12
    assert sum(t.equal + t.different + t.follows for t in whole.totals) == len(whole.comparisons)
    assert len(whole.comparisons) == whole.requests * len(FIELDS)
    assert (whole.different, short.different) == (short.different, len(whole.differing))
    assert len(short.differing) == 3
    assert short.unnamed == whole.different - 3
    assert judge_pairs([], [short]) == "fail"
    # A floor too noisy to be kept by name says nothing of anybody.
    assert judge_pairs([short], [whole]) == "inconclusive"
    assert judge_pairs([whole], [whole]) == "inconclusive"


def test_noise_is_told_from_differences_by_request(tmp_path: Path) -> None:
    one, _ = inject(synthetic_capture(), "token")
    other, _ = inject(synthetic_capture(), "missing")
    good = stored(tmp_path, synthetic_capture(), "a.jsonl")
    noisy = compared(good, stored(tmp_path, one, "b.jsonl"))
    different = compared(good, stored(tmp_path, other, "c.jsonl"))
    assert noisy.differing == {Key("greedy", "g0")}
    assert judge_pairs([noisy], [noisy]) == "inconclusive"
    assert judge_pairs([noisy], [different]) == "fail"
    assert judge_pairs([noisy, different], [different]) == "inconclusive"


def test_memory_does_not_grow_with_the_captures() -> None:
    """Two captures of 24 MB and of 4 MB take the same, whatever differs, in whatever order."""

    def peak(megabytes: int) -> int:
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "scripts" / "compare_large.py")),
                *("--mb", str(megabytes), "--differ", "all", "--disorder"),
            ],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout)
        assert found["different"] == found["requests"]
        return int(found["peak_mb"]) - int(found["at_start_mb"])

    small, large = peak(4), peak(24)
    assert large < small + 12
    assert large < 60
