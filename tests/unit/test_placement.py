"""Rank order, on made-up clusters: the nodes are D (the driver's), A and B."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat.executors.placement import (
    Bundle,
    PlacementError,
    check_bundles,
    local_ranks_of,
    parse_bundle_indices,
    place,
    read_bundles,
    split_groups,
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
        ([1, 1], "names bundle 1 more than once"),
        ([0, 7], "has no bundle 7, only 0 to 3"),
        ([0, 2], "bundle 2 reserves no device"),
        ([0, 3], "bundle 3 is on node A, which is dead"),
        (
            [7, 2, 2, 3],
            "names 4 bundles, .*; it names bundle 2 more than once.*; the placement group has no "
            "bundle 7.*; bundle 2 reserves.*; bundle 3 is on node A",
        ),
    ],
)
def test_indices_that_cannot_be(indices: list[int], fault: str) -> None:
    with pytest.raises(PlacementError, match=f"VLLM_RAY_BUNDLE_INDICES=.*{fault}"):
        place(bundles("DDDA", "2"), "D", 2, indices, alive={"D"})


def test_a_dead_node_holds_no_rank() -> None:
    placed = place(bundles("ADBD"), "D", 3, alive={"D", "B"})
    assert [p.bundle_index for p in placed] == [1, 3, 2]
    with pytest.raises(PlacementError, match="3 bundles with a device on a living node, and 4 ra"):
        place(bundles("ADBD"), "D", 4, alive={"D", "B"})


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "expected"),
    [
        ("DAA", 2, 1, "AA"),  # the driver's node is passed over
        ("DDDAA", 2, 2, "DDAA"),
        ("DAAAB", 2, 2, "DAAA"),  # one of two is split
        ("DAAB", 2, 2, "DBAA"),  # so here, where going node by node would split both
        ("DDDAAA", 2, 3, "DDDAAA"),  # one of three, whatever the order
    ],
)
def test_a_tensor_parallel_group_is_on_one_node(
    nodes: str, tp: int, pp: int, expected: str
) -> None:
    placed = place(bundles(nodes), "D", tp * pp, tensor_parallel_size=tp)
    assert "".join(p.node_id for p in placed) == expected


def test_a_split_group_is_named() -> None:
    placed = place(bundles("DDDA"), "D", 4, tensor_parallel_size=2)
    assert list(map(str, split_groups(placed, 2))) == [
        "tensor-parallel group 1 (ranks 2 to 3) is on nodes D, A"
    ]
    assert split_groups(placed, 1) == []


def test_too_few_bundles() -> None:
    with pytest.raises(
        PlacementError, match="has 2 bundles with a device, and 3 ranks need one each"
    ):
        order("DDD", 3, without_device="1")


@pytest.mark.parametrize(
    ("specs", "fault"),
    [
        (
            [{"GPU": 2}],
            "Bundle 0 of the placement group reserves more than one GPU.*{'GPU': 1}. . 2",
        ),
        ([{"GPU": 1}, {"GPU": 1}, {"GPU": 4}], "Bundle 2 .* more than one GPU"),
        ([{"GPU": 1}, {"CPU": 8}], "has 1 bundles with a GPU, and 2 ranks need one each"),
        ([{"NPU": 1}, {"NPU": 1}], "has 0 bundles with a GPU"),
        ([{"GPU": 1}, {"GPU": 0.5}], "1 bundles with a GPU .1 more with less than the 1 that a ra"),
    ],
)
def test_a_group_that_cannot_hold_the_engine(specs: list[dict[str, float]], fault: str) -> None:
    with pytest.raises(PlacementError, match=fault):
        check_bundles(specs, 2, "GPU")


def test_a_group_that_can_hold_the_engine() -> None:
    check_bundles([{"GPU": 1, "CPU": 3}, {"CPU": 1}, {"GPU": 1}, {"GPU": 0.5}], 2, "GPU")
    check_bundles([{"GPU": 0.5}, {"GPU": 0.5}], 2, "GPU", devices_per_rank=0.5)


def test_a_bundle_that_is_too_small_for_a_rank() -> None:
    parts = [Bundle(0, "D", 0.5), Bundle(1, "D", 1.0), Bundle(2, "D", 1.0)]
    assert [p.bundle_index for p in place(parts, "D", 2)] == [1, 2]
    assert [p.bundle_index for p in place(parts, "D", 3, devices_per_rank=0.5)] == [0, 1, 2]
    with pytest.raises(PlacementError, match="bundle 0 reserves 0.5 of a device, and a rank takes"):
        place(parts, "D", 2, [0, 1])


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "expected"),
    [
        ("DAA", 2, 1, "DA"),  # split, where V2 passes the driver's node over
        ("AADBB", 2, 2, "DBAA"),
        ("DDAA", 2, 2, "DDAA"),
        ("DAAB", 2, 2, "DBAA"),
        ("DDAAAA", 4, 1, "DDAA"),
    ],
)
def test_legacy_has_rank_0_on_the_drivers_node(nodes: str, tp: int, pp: int, expected: str) -> None:
    placed = place(bundles(nodes), "D", tp * pp, tensor_parallel_size=tp, needs_driver=True)
    assert "".join(p.node_id for p in placed) == expected


def test_legacy_without_a_bundle_on_the_drivers_node() -> None:
    with pytest.raises(PlacementError, match="no bundle with a device on the driver's node .D., a"):
        place(bundles("AAB"), "D", 2, needs_driver=True)
    with pytest.raises(PlacementError, match="INDICES=1,2: none of these bundles is on the driver"):
        place(bundles("DAB"), "D", 2, [1, 2], needs_driver=True)
    assert place(bundles("DAB"), "D", 2, [1, 0], needs_driver=True)[0].node_id == "A"


def test_parse() -> None:
    assert parse_bundle_indices("3, 2,1") == [3, 2, 1]


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("0,a,1.5", "'a', '1.5'"),
        ("0 1", "'0 1'"),
        ("0,", "''"),
        (" ", "' '"),
        ("-1,1_0", "'-1', '"),
    ],
)
def test_what_is_no_list_of_numbers(text: str, bad: str) -> None:
    with pytest.raises(PlacementError, match=f"is not a list of numbers .*: {bad}"):
        parse_bundle_indices(text)


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


def fewest_splits(nodes: list[str], tp: int, pp: int) -> int:
    """Return the smallest number of split groups with rank 0 on D, by trying everything."""
    there = Counter(nodes)
    if there["D"] >= tp:
        return max(0, pp - sum(amount // tp for amount in there.values()))
    # The first group is split: it takes at least one of D's, and tp - 1 of any.
    best = pp
    for first in set(combinations(sorted(nodes), tp)):
        if "D" in first:
            left = there - Counter(first)
            whole = min(pp - 1, sum(amount // tp for amount in left.values()))
            best = min(best, pp - whole)
    return best


@given(st.lists(st.sampled_from("DABC"), min_size=2, max_size=9), st.data())
def test_legacy_splits_as_few_groups_as_can_be(nodes: list[str], data: st.DataObject) -> None:
    nodes = [*nodes, "D"]
    tp = data.draw(st.integers(1, min(4, len(nodes))))
    pp = data.draw(st.integers(1, len(nodes) // tp))
    placed = place(
        bundles("".join(nodes)), "D", tp * pp, tensor_parallel_size=tp, needs_driver=True
    )
    assert len({p.bundle_index for p in placed}) == len(placed) == tp * pp
    assert placed[0].node_id == "D"
    assert len(split_groups(placed, tp)) == fewest_splits(nodes, tp, pp)


@given(st.lists(st.sampled_from("DABC"), min_size=2, max_size=14), st.data())
def test_as_few_groups_are_split_as_can_be(nodes: list[str], data: st.DataObject) -> None:
    tp = data.draw(st.integers(1, min(4, len(nodes))))
    pp = data.draw(st.integers(1, len(nodes) // tp))
    placed = place(bundles("".join(nodes)), "D", tp * pp, tensor_parallel_size=tp)
    assert len({p.bundle_index for p in placed}) == len(placed) == tp * pp
    whole = sum(nodes.count(node) // tp for node in set(nodes))
    assert len(split_groups(placed, tp)) == max(0, pp - whole)
    sequence = [p.node_id for p in placed]
    if "D" in sequence:
        assert sequence[0] == "D"
    for node in set(sequence):
        assert [p.local_rank for p in placed if p.node_id == node] == list(
            range(sequence.count(node))
        )
