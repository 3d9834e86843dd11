"""Rank order, on made-up clusters: the nodes are D (the driver's), A and B."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat.executors.placement import (
    Bundle,
    PlacementError,
    local_ranks_of,
    parse_bundle_indices,
    place,
    read_bundles,
)


def bundles(nodes: str, without_device: str = "") -> list[Bundle]:
    return [Bundle(i, n, 0.0 if str(i) in without_device else 1.0) for i, n in enumerate(nodes)]


def order(
    nodes: str, world_size: int, indices: list[int] | None = None, **more: str
) -> list[tuple[int, str, int]]:
    return [
        (p.bundle_index, p.node_id, p.local_rank)
        for p in place(bundles(nodes, **more), "D", world_size, indices)
    ]


@pytest.mark.parametrize(
    ("nodes", "world_size", "expected"),
    [
        ("DD", 2, [(0, "D", 0), (1, "D", 1)]),
        ("AD", 2, [(1, "D", 0), (0, "A", 0)]),
        (
            "BDABDA",
            6,
            [(1, "D", 0), (4, "D", 1), (2, "A", 0), (5, "A", 1), (0, "B", 0), (3, "B", 1)],
        ),
        ("AABB", 4, [(0, "A", 0), (1, "A", 1), (2, "B", 0), (3, "B", 1)]),  # none on the driver's
        ("ADDD", 2, [(1, "D", 0), (2, "D", 1)]),  # a group larger than the world (defect V2-1)
    ],
)
def test_driver_first_then_node_by_node(
    nodes: str, world_size: int, expected: list[tuple[int, str, int]]
) -> None:
    assert order(nodes, world_size) == expected


def test_bundles_without_a_device_are_passed_over() -> None:
    assert order("DDD", 2, without_device="1") == [(0, "D", 0), (2, "D", 1)]


def test_indices_are_the_rank_order_whatever_the_nodes() -> None:
    """Not driver-first (defect V2-2): the local readers are named, not counted."""
    placed = place(bundles("DDAA"), "D", 3, [2, 0, 1])
    assert [(p.rank, p.node_id, p.local_rank) for p in placed] == [
        (0, "A", 0),
        (1, "D", 0),
        (2, "D", 1),
    ]
    assert local_ranks_of(placed, "D") == [1, 2]


@pytest.mark.parametrize(
    ("indices", "fault"),
    [
        ([0], "names 1 bundles, and there are 2 ranks"),
        ([0, 1, 2], "names 3 bundles"),
        ([1, 1], "names a bundle twice"),
        ([0, 7], "has no bundle 7, only 0 to 2"),
        ([0, 2], "bundle 2 reserves no device"),
    ],
)
def test_indices_that_cannot_be(indices: list[int], fault: str) -> None:
    with pytest.raises(PlacementError, match=fault):
        order("DDD", 2, indices, without_device="2")


def test_too_few_bundles() -> None:
    with pytest.raises(
        PlacementError, match="has 2 bundles with a device, and 3 ranks need one each"
    ):
        order("DDD", 3, without_device="1")


def test_parse() -> None:
    assert parse_bundle_indices("3, 2,1") == [3, 2, 1]
    with pytest.raises(PlacementError, match="is not a list of numbers"):
        parse_bundle_indices("0,a")


def test_read() -> None:
    specs = [{"GPU": 1.0}, {"CPU": 4.0}]
    assert read_bundles(specs, {0: "D", 1: "A"}, "GPU") == [
        Bundle(0, "D", 1.0),
        Bundle(1, "A", 0.0),
    ]


@given(st.lists(st.sampled_from("DABC"), min_size=1, max_size=12), st.data())
def test_what_always_holds(nodes: list[str], data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, len(nodes)))
    placed = place(bundles("".join(nodes)), "D", world_size)
    assert [p.rank for p in placed] == list(range(world_size))
    assert len({p.bundle_index for p in placed}) == world_size
    sequence = [p.node_id for p in placed]
    assert len(set(sequence)) == sum(
        1 for a, b in zip(["", *sequence], sequence, strict=False) if a != b
    )
    if "D" in sequence:
        assert sequence[0] == "D"
    for node in set(sequence):
        assert [p.local_rank for p in placed if p.node_id == node] == list(
            range(sequence.count(node))
        )
