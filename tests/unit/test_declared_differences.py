"""Differences that a suite declares are shown with their source and fail nothing; others fail."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.compare import Compared, compare_sources
from vllm_ray_compat.parity.faults import inject
from vllm_ray_compat.parity.known import DeclaredDifference
from vllm_ray_compat.parity.noise import judge_pairs
from vllm_ray_compat.parity.report.data import declared_differences
from vllm_ray_compat.parity.stored import InMemory
from vllm_ray_compat.parity.synthetic import synthetic_capture
from vllm_ray_compat.parity.workloads import known_differences_of, parse_suite


def known(**changes: Any) -> DeclaredDifference:
    base = {"backend": "v2", "field": "token_ids", "what": "rounds otherwise", "source": "vllm#1"}
    return DeclaredDifference(**{**base, **changes})


OUR_LEGACY = "vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor"


def compared(
    kind: str, *declared: DeclaredDifference, release: str = "0.32.0", candidate: str = "v2"
) -> Compared:
    left = synthetic_capture()
    right, _ = inject(left, kind)
    for side, backend in ((left, "legacy"), (right, candidate)):
        side.header.backend = backend
        assert side.engine is not None
        side.engine.vllm = release
    return compare_sources("tp2pp2", InMemory(left), InMemory(right), declared=declared)


def test_a_declared_difference_is_shown_and_fails_nothing() -> None:
    found = compared("seed", known())
    assert judge_pairs([], [found]) == "pass"
    (shown,) = [c for c in found.comparisons if c.result == "known"]
    assert shown.known == "rounds otherwise (vllm#1)"
    assert {c.result for c in found.comparisons} == {"equal", "known", "follows"}
    (reported,) = declared_differences([known()], [found])
    assert (reported.seen, reported.effect) == (1, "seen in 1 comparisons")
    assert (found.different, found.known_requests, found.within_tolerance) == (0, 1, 0)


def test_one_that_did_not_happen_is_not_seen() -> None:
    found = compared("latency", known())
    (reported,) = declared_differences([known()], [found])
    assert (reported.seen, reported.effect) == (0, "not seen")
    assert judge_pairs([], [found]) == "pass"


@pytest.mark.parametrize(
    "changes",
    [
        {"field": "text"},
        {"backend": "mp"},
        {"request": "g1"},
        {"workload": "logprobs"},
        {"since": "0.33.0"},
        {"fixed_in": "0.32.0"},
    ],
)
def test_an_undeclared_one_fails(changes: dict[str, Any]) -> None:
    found = compared("seed", known(**changes))
    assert judge_pairs([], [found]) == "fail"
    assert found.different == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": "greedy"},
        {"request": "g0", "field": None},
        {"since": "0.20.0"},
        {"since": "0.32.0", "fixed_in": "0.33.0"},
        {"backend": "legacy"},
    ],
)
def test_what_it_covers(changes: dict[str, Any]) -> None:
    assert judge_pairs([], [compared("seed", known(**changes))]) == "pass"


def test_a_class_has_the_differences_of_its_backend() -> None:
    """Two classes of one backend have none between them."""
    legacy = known(backend="legacy")
    v2 = "vllm.v1.executor.ray_executor_v2:RayExecutorV2"
    assert judge_pairs([], [compared("seed", known(), candidate=v2)]) == "pass"
    assert judge_pairs([], [compared("seed", known(), candidate="mine:RayExecutorV2")]) == "fail"
    assert judge_pairs([], [compared("seed", legacy, candidate=OUR_LEGACY)]) == "fail"


def test_a_whole_request_can_be_one() -> None:
    declared = known(backend="legacy", field=None, request="g0", workload="greedy")
    assert judge_pairs([], [compared("missing", declared)]) == "fail"  # that one loses stop/s0
    lost = known(backend="v2", field="present", request="s0")
    assert judge_pairs([], [compared("missing", lost)]) == "pass"


def test_between_two_runs_of_one_backend_nothing_is_known() -> None:
    left = synthetic_capture()
    right, _ = inject(left, "token")
    declared = known(backend=left.header.backend)
    found = compare_sources("t", InMemory(left), InMemory(right), declared=[declared])
    assert judge_pairs([], [found]) == "fail"


def test_a_release_needs_an_engine_that_tells_its_own() -> None:
    header = cap.Header.model_validate(
        {**synthetic_capture().header.model_dump(by_alias=True), "backend": "v2"}
    )
    assert known().is_of(header, None)
    assert not known(since="0.1").is_of(header, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"field": None}, "names a field or a request"),
        ({"field": "tokens"}, "unknown field 'tokens'"),
        ({"since": "soon"}, "is no vLLM release"),
        ({"source": ""}, "at least 1 character"),
    ],
)
def test_a_bad_declaration(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        known(**changes)


def test_from_a_suite() -> None:
    suite = parse_suite(
        """{"schema": "vllm_ray_compat.suite/1", "name": "s",
        "known_differences": [{"backend": "v2", "field": "text", "what": "a", "source": "b"}],
        "workloads": [{"name": "w", "about": "a", "requests": [{"id": "r", "prompt": {"text": "x"}}],
        "known_differences": [{"backend": "legacy", "request": "r", "what": "c", "source": "d"}]}]}""",
        "s.json",
    )
    assert [(k.backend, k.workload) for k in known_differences_of(suite)] == [
        ("v2", None),
        ("legacy", "w"),
    ]
