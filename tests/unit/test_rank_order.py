"""What is said about the order of ranks, and that legacy's sorting is told right."""

from __future__ import annotations

import pytest

from vllm_ray_compat.executors.placement import RankPlacement
from vllm_ray_compat.executors.rank_order import (
    describe,
    rank_order,
    read_bundle_indices,
    sorted_again,
)
from vllm_ray_compat.schedule import Backend


@pytest.mark.parametrize(
    ("backend", "listed", "whole_groups", "expected"),
    [
        (Backend.V2, True, True, "as_listed"),
        (Backend.V2, True, False, "as_listed"),
        (Backend.LEGACY, True, True, "listed_then_sorted"),
        (Backend.V2, False, True, "by_node"),
        (Backend.LEGACY, False, True, "by_node"),
        (Backend.V2, False, False, "sorted_by_node"),
        (Backend.LEGACY, False, False, "first_then_sorted"),
    ],
)
def test_the_rule(backend: Backend, listed: bool, whole_groups: bool, expected: str) -> None:
    assert rank_order(backend, listed=listed, whole_groups=whole_groups).name == expected


def test_without_the_variable_both_backends_have_one_order() -> None:
    found = describe(Backend.V2, environ={})
    assert found["rank_order"] == "by_node"
    assert found["other_backend"] is None
    assert found["bundle_indices"] is None
    assert describe(Backend.V2, environ={"VLLM_RAY_BUNDLE_INDICES": ""}) == found


@pytest.mark.parametrize(
    ("raw", "indices", "error"),
    [
        ("3, 2 ,1", (3, 2, 1), None),
        ("0,1,0", (0, 1, 0), "names bundle 0 more than once"),
        ("0;1", None, "is not a list of numbers"),
    ],
)
def test_the_variable(raw: str, indices: tuple[int, ...] | None, error: str | None) -> None:
    found = read_bundle_indices({"VLLM_RAY_BUNDLE_INDICES": raw})
    assert found is not None
    assert (found.raw, found.indices) == (raw, indices)
    assert (found.error is None) if error is None else (error in str(found.error))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("ADDA", "DDAA"),
        ("AADBB", "DBBAA"),
        ("BBA", "ABB"),  # fewer ranks first
        ("ABAB", "BBAA"),  # B has the smaller address
    ],
)
def test_sorted_again(nodes: str, expected: str) -> None:
    placed = [RankPlacement(i, -1, i + 10, node) for i, node in enumerate(nodes)]
    found = sorted_again(placed, "D", {"A": "10.0.0.2", "B": "10.0.0.1", "D": "10.0.0.9"})
    assert "".join(p.node_id for p in found) == expected
    assert [p.rank for p in found] == list(range(len(nodes)))
    for node in set(nodes):
        on_node = [p for p in found if p.node_id == node]
        assert [p.local_rank for p in on_node] == list(range(len(on_node)))
        assert [p.bundle_index for p in on_node] == sorted(p.bundle_index for p in on_node)
