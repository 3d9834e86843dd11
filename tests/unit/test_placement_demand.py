"""What is asked for against what is there, on made-up clusters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from vllm_ray_compat.executors.placement import PlacementError
from vllm_ray_compat.executors.placement_demand import (
    Holder,
    Node,
    check_addresses,
    describe_specs,
    report,
    why_never,
)


def node(name: str, free: float, total: float) -> Node:
    address = f"10.0.0.{name}"
    return Node(
        name * 12, address, {"GPU": total, f"node:{address}": 1.0, "CPU": 8.0}, {"GPU": free}
    )


TWO = [node("1", 1, 2), node("2", 0, 2)]


@pytest.mark.parametrize(
    ("specs", "strategy", "why"),
    [
        ([{"GPU": 1}] * 4, "PACK", None),  # all are held, but not for ever
        ([{"GPU": 1}] * 5, "PACK", "all nodes together have GPU 4, and it asks for 5"),
        ([{"GPU": 3}], "PACK", "no node has GPU 3 in all, which bundle 0 asks for"),
        ([{"GPU": 1}, {"NPU": 1}], "PACK", "no node has NPU 1 in all, which bundle 1"),
        ([{"GPU": 1}] * 4, "STRICT_PACK", "no node has GPU 4 in all, which STRICT_PACK asks"),
        ([{"GPU": 1}] * 2, "STRICT_PACK", None),
        ([{"GPU": 1}] * 3, "STRICT_SPREAD", "there are 2 nodes, and STRICT_SPREAD asks for 3"),
        ([{"GPU": 1, "node:10.0.0.9": 0.001}], "PACK", "no node has GPU 1, node:10.0.0.9 0.001"),
    ],
)
def test_what_can_never_be(
    specs: list[Mapping[str, float]], strategy: str, why: str | None
) -> None:
    found = why_never(specs, strategy, TWO)
    assert found is None if why is None else why in str(found)


@pytest.mark.parametrize(
    ("pinned", "host_ip", "said"),
    [
        (
            "10.9.9.9",
            "10.9.9.9",
            "VLLM_HOST_IP=10.9.9.9 is wrong: no node of the Ray cluster has the address 10.9.9.9. "
            "Ray knows this node as 10.0.0.1, and its nodes are 10.0.0.1, 10.0.0.2. The legacy "
            "executor reserves a device on node:10.9.9.9, and would wait for it for ever. Set "
            "VLLM_HOST_IP=10.0.0.1 in this process, or unset it.",
        ),
        ("10.0.0.2", "10.0.0.2", "10.0.0.2 is the address of another node of the Ray cluster"),
        ("172.17.0.1", None, "vLLM takes 172.17.0.1 for this machine's address: no node of"),
    ],
)
def test_a_bundle_that_is_pinned_elsewhere(pinned: str, host_ip: str | None, said: str) -> None:
    specs = [{"GPU": 1, f"node:{pinned}": 0.001}, {"GPU": 1}]
    with pytest.raises(PlacementError) as caught:
        check_addresses(specs, TWO, TWO[0].id, host_ip)
    assert said in str(caught.value)


def test_a_bundle_that_is_pinned_here() -> None:
    check_addresses([{"GPU": 1, "node:10.0.0.1": 0.001}], TWO, TWO[0].id, "10.0.0.1")
    check_addresses([{"GPU": 1}], TWO, TWO[0].id, "10.9.9.9")  # V2 pins nothing


def test_who_holds_the_rest() -> None:
    holders = [
        Holder("placement group 7f", "made by job 02", {TWO[0].id: {"GPU": 1, "CPU": 1}}),
        Holder("actor A", "of job 03", {TWO[1].id: {"GPU": 0.5}}),
        Holder("actor B", "of job 03", {TWO[1].id: {"CPU": 4}}),  # not asked for
    ]
    specs = [{"GPU": 1.0, "node:10.0.0.1": 0.001}, {"GPU": 1.0}]
    there, held = report(specs, TWO, holders)
    assert there == "10.0.0.1 (11111111): GPU 1 free of 2; 10.0.0.2 (22222222): GPU 0 free of 2"
    assert held == (
        "placement group 7f, made by job 02: GPU 1 on 10.0.0.1 (11111111); "
        "actor A, of job 03: GPU 0.5 on 10.0.0.2 (22222222); "
        "tasks, or actors that just came or went: GPU 1.5 on 10.0.0.2 (22222222)"
    )
    assert report([{"GPU": 1.0}], [node("1", 2, 2)], [])[1] == "nobody"


def test_equal_bundles_are_counted() -> None:
    assert describe_specs([{"GPU": 1}, {"CPU": 4}, {"GPU": 1}]) == "2 x {GPU 1}, 1 x {CPU 4}"
