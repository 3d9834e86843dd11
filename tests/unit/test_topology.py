from __future__ import annotations

import pytest

from vllm_ray_compat.errors import EXIT_USAGE
from vllm_ray_compat.parity.topology import Topology, TopologyError, parse_topology


@pytest.mark.parametrize(
    ("text", "tp", "pp", "shown"),
    [
        ("tp2", 2, 1, "tp2"),
        ("pp2", 1, 2, "pp2"),
        ("TP2PP4", 2, 4, "tp2pp4"),
        ("tp1", 1, 1, "tp1"),
        ("tp1pp2", 1, 2, "pp2"),
    ],
)
def test_parse(text: str, tp: int, pp: int, shown: str) -> None:
    topology = parse_topology(text)
    assert (topology.tp, topology.pp, topology.world_size) == (tp, pp, tp * pp)
    assert str(topology) == shown


@pytest.mark.parametrize("text", ["", "tp", "tp0", "pp2tp2", "tp-2", "dp2", "2", "tp2 pp2"])
def test_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="Write the sizes as") as caught:
        parse_topology(text)
    assert caught.value.exit_code == EXIT_USAGE


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(TopologyError, match="8 attention heads do not divide.*tp1, tp2, tp4, tp8"):
        Topology(tp=3).check(heads=8, layers=4, model="m")


def test_more_stages_than_layers() -> None:
    with pytest.raises(TopologyError, match="it has 4. Choose at most pp4"):
        Topology(pp=5).check(heads=8, layers=4, model="m")


def test_a_fit() -> None:
    Topology(tp=4, pp=4).check(heads=8, layers=4, model="m")
