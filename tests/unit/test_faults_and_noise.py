"""The comparison can fail: every seeded fault is found, at its place, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.compare import compare, compare_sources
from vllm_ray_compat.parity.faults import (
    FAULTS,
    FaultError,
    harmless,
    inject,
    inject_file,
    write_capture,
)
from vllm_ray_compat.parity.noise import judge, judge_pairs, worst
from vllm_ray_compat.parity.selftest import problem
from vllm_ray_compat.parity.stored import InMemory, StoredCapture
from vllm_ray_compat.parity.synthetic import synthetic_capture

from .helpers import capture

HARMLESS = tuple(kind.name for kind in harmless.KINDS)
REAL = tuple(kind for kind in FAULTS if kind not in HARMLESS)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_every_fault_is_found_where_it_was_put(kind: str, seed: int | None) -> None:
    good = synthetic_capture()
    altered, fault = inject(good, kind, None if seed is None else Random(seed))
    assert good == synthetic_capture(), "the capture given must stay as it was"
    compared = compare_sources("tp2pp2", InMemory(good), InMemory(altered))
    assert problem(fault, compared) is None
    assert judge_pairs([], [compared]) == "fail"


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_differs_from_run_to_run_is_not_found(kind: str, tmp_path: Path) -> None:
    write_capture(synthetic_capture(), tmp_path / "a.jsonl")
    fault = inject_file(tmp_path / "a.jsonl", kind, tmp_path / "b.jsonl")
    assert fault.harmless
    assert (tmp_path / "a.jsonl").read_bytes() != (tmp_path / "b.jsonl").read_bytes()
    with StoredCapture(tmp_path / "a.jsonl") as a, StoredCapture(tmp_path / "b.jsonl") as b:
        compared = compare_sources("tp2pp2", a, b)
    assert compared.requests == len(synthetic_capture().results)
    assert judge_pairs([], [compared]) == "pass"


@pytest.mark.parametrize("kind", ["token", "logprob", "order", "finish", "missing"])
def test_the_usual_place_is_the_same_every_time(kind: str) -> None:
    _, fault = inject(capture(), kind)
    places = {
        "token": ("w", "r0", 2),
        "logprob": ("w", "r0", 3),
        "order": ("w", "r0", 0),
        "finish": ("w", "r0", None),
        "missing": ("x", "r0", 0),
    }
    assert (fault.workload, fault.request, fault.position) == places[kind]


def test_unknown_fault() -> None:
    with pytest.raises(UsageError, match=r"Unknown fault 'tokn'. Did you mean 'token'\?"):
        inject(capture(), "tokn")


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_no_result_can_carry_is_an_error(kind: str) -> None:
    bare = capture()
    bare.results = []
    with pytest.raises(FaultError, match="none"):
        inject(bare, kind)


def test_verdict_without_noise() -> None:
    same = compare("tp2", capture(), capture())
    other = compare("tp2", capture(), inject(capture(), "token")[0])
    assert judge(same, same) == "pass"
    assert judge(same, other) == "fail"


def test_noise_in_the_same_request_is_inconclusive_and_elsewhere_fails() -> None:
    noisy = compare("tp2", capture(), inject(capture(), "token")[0])  # w/r0
    same_place = noisy
    elsewhere = compare("tp2", capture(), inject(capture(), "missing")[0])  # x/r0
    same = compare("tp2", capture(), capture())
    assert judge(noisy, same_place) == "inconclusive"
    assert judge(noisy, same) == "inconclusive"
    assert judge(noisy, elsewhere) == "fail"


def test_nothing_compared_proves_nothing() -> None:
    assert judge([], []) == "inconclusive"
    assert worst([]) == "inconclusive"


def test_the_worst_verdict_counts() -> None:
    assert worst(["pass", "pass"]) == "pass"
    assert worst(["pass", "inconclusive"]) == "inconclusive"
    assert worst(["inconclusive", "fail", "pass"]) == "fail"
