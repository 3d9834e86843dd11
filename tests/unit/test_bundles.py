"""Which bundles the arms of a parity run are told to use."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.bundles import bundle_lists
from vllm_ray_compat.parity.sides import Side
from vllm_ray_compat.parity.topology import parse_topology

SIDES = [
    Side("legacy", "a:Legacy", "0.19.1", True, python="/there/bin/python"),
    Side("v2", "a:V2", "0.32.0", True),
    Side("mp", "a:Mp", "0.32.0", True),
]


def lists(
    *texts: str, topologies: Sequence[str] = ("tp2", "pp2"), sides: Sequence[Side] = SIDES
) -> dict[str, str]:
    return bundle_lists(texts, sides, [parse_topology(text) for text in topologies])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], {}),
        (["1,0"], {"legacy@0.19.1": "1,0", "v2": "1,0"}),
        (["v2: 1, 0"], {"v2": "1,0"}),
        (["v2:1,0", "0,1"], {"legacy@0.19.1": "0,1", "v2": "1,0"}),
        (["legacy@0.19.1:1,0"], {"legacy@0.19.1": "1,0"}),
    ],
)
def test_one_list_for_all_and_one_for_an_arm(texts: list[str], expected: dict[str, str]) -> None:
    assert lists(*texts) == expected


def test_four_ranks() -> None:
    assert lists("v2:3,1,2,0", topologies=["tp2pp2"]) == {"v2": "3,1,2,0"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1;0", "--bundle-indices 1;0: VLLM_RAY_BUNDLE_INDICES='1;0' is not a list of numbers"),
        ("", "Not a number: ''"),
        ("v2:", "Not a number: ''"),
        ("1,1", "tp2 has 2 ranks, so give the bundles 0 to 1 in any order, each once"),
        ("0", "tp2 has 2 ranks"),
        ("2,0", "tp2 has 2 ranks"),
        ("mp:1,0", "mp has no placement group; only the arms on Ray have one"),
        ("v3:1,0", "Unknown arm 'v3'. Did you mean 'v2'?"),
    ],
)
def test_a_list_that_is_none(text: str, said: str) -> None:
    with pytest.raises(UsageError) as told:
        lists(text)
    assert said in str(told.value)


def test_it_has_to_fit_each_topology() -> None:
    with pytest.raises(UsageError, match="tp2pp2 has 4 ranks"):
        lists("1,0", topologies=["tp2", "tp2pp2"])


def test_no_arm_is_on_ray() -> None:
    with pytest.raises(UsageError, match="mp has no placement group"):
        lists("1,0", sides=SIDES[2:])
