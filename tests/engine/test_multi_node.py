"""Engines over two nodes with addresses of their own, and what breaks such clusters.

Needs root and network namespaces, and is skipped with the reason where it cannot have them. By
default one shape of each backend and the failure that everybody meets; all others, half an hour on
two cores, with

    PLACEMENT=full python -m pytest tests/engine/test_multi_node.py

What each case is, and what was measured, is in docs/multi_node.md. ``scripts/multi_node.sh`` makes
the clusters; the nodes have a /dev/shm of their own, so that a rank which takes shared memory for a
way to another node fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.multi_node import Nodes, address
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.vllm_api import find_vllm

Answers = dict[str, dict[str, Any]]
OnOneNode = Callable[[str, Nodes], list[Any]]

VLLM = find_vllm()
OWN_LEGACY = "vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor"
#: ``v2`` and ``legacy`` are vLLM's, repaired, where it ships them, and else this package's.
BACKENDS = ("v2", "legacy")

#: Seconds from a start to its failure, the import of what an engine needs included.
FAILS_WITHIN_S = 60

full = pytest.mark.skipif(
    os.environ.get("PLACEMENT") != "full", reason="PLACEMENT=full runs it: minutes for each"
)


#: What gives a release that has no legacy executor ours.
LEGACY = {} if Backend.LEGACY in VLLM.ships else {"RAYCOMPAT_RESTORE_LEGACY": "1"}


def assert_answers(found: Answers, expected: Any, ranks: list[list[Any]]) -> None:
    """Each case answered as *expected*, bit for bit, ran on *ranks*, and gave everything back."""
    for case, one in found.items():
        assert "error" not in one, (case, one["error"])
        assert one["answers"] == expected, case
        assert one["ranks"] == ranks, case
        assert_nothing_held(one)


def assert_nothing_held(one: dict[str, Any]) -> None:
    assert one["held"] == 0
    assert one["groups"] == []


def assert_fails(one: dict[str, Any], *parts: str) -> None:
    """The start failed in time, said *parts* in one message, and gave everything back."""
    assert "error" in one, one
    first = one["error"].partition(" <- ")[0]
    for part in parts:
        assert part in first
    assert one["failed_s"] < FAILS_WITHIN_S
    assert_nothing_held(one)


@pytest.fixture(scope="module")
def on_one_node(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> OnOneNode:
    """Return a function that returns what ``mp`` answers with a topology, on the first node.

    On a node, whose memory goes with it: killed workers of ``mp`` leave theirs.
    """
    known: dict[str, list[Any]] = {}

    def answers(topology: str, nodes: Nodes) -> list[Any]:
        if topology not in known:
            log = tmp_path_factory.mktemp(topology) / "log"
            case = f"mp:{topology}"
            known[topology] = nodes.run_cases(tiny, log, case)[case]["answers"]
        return known[topology]

    return answers


# -- always ------------------------------------------------------------------------------------


def test_tensor_parallel_inside_and_pipeline_across_nodes(
    on_one_node: OnOneNode, tiny: Path, tmp_path: Path
) -> None:
    """Driver's node first, and each tensor-parallel group on one node."""
    with Nodes("--devices", "2,2") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2pp2")
        expected = on_one_node("tp2pp2", nodes)
    ranks = [[0, 0, address(1)], [1, 1, address(1)], [2, 0, address(2)], [3, 1, address(2)]]
    assert_answers(found, expected, ranks)


def test_legacy_across_nodes(on_one_node: OnOneNode, tiny: Path, tmp_path: Path) -> None:
    """Two workers only: all that waits for a Compiled Graph spins, on both nodes.

    With four workers a step of the first engine took longer than minutes on two cores that other
    engines shared; see test_legacy_with_four_workers.
    """
    with Nodes("--devices", "1,1") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "legacy:pp2", environ=LEGACY)
        expected = on_one_node("pp2", nodes)
    assert_answers(found, expected, [[0, 0, address(1)], [1, 0, address(2)]])


def test_only_rays_ports_open(tiny: Path, tmp_path: Path) -> None:
    with Nodes("--devices", "1,1", "--ports", "ray-only") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2", "legacy:pp2", environ=LEGACY)
        blocked = nodes.blocked()
    for one in found.values():
        assert_fails(
            one,
            "UnreachableNodeError",
            f"{address(1)} (driver, rank 0) cannot reach {address(2)}:",
            f"{address(2)} (rank 1) cannot reach {address(1)}:",
            "Open them between the nodes",
        )
        targets = {line.partition(" -> ")[2] for line in blocked}
        assert any(target in one["error"] for target in targets), "not what the firewall stopped"


# -- PLACEMENT=full ----------------------------------------------------------------------------


@full
def test_legacy_with_four_workers(on_one_node: OnOneNode, tiny: Path, tmp_path: Path) -> None:
    """Wants more than two cores, or a quiet machine."""
    with Nodes("--devices", "2,2") as nodes:
        found = nodes.run_cases(
            tiny, tmp_path / "log", "legacy:tp2pp2", environ={**LEGACY, "CASE_S": "500"}
        )
        expected = on_one_node("tp2pp2", nodes)
    ranks = [[0, 0, address(1)], [1, 1, address(1)], [2, 0, address(2)], [3, 1, address(2)]]
    assert_answers(found, expected, ranks)


@full
@pytest.mark.parametrize("topology", ["tp2", "pp2"])
def test_across_nodes(topology: str, on_one_node: OnOneNode, tiny: Path, tmp_path: Path) -> None:
    cases = [f"{backend}:{topology}" for backend in (*BACKENDS, OWN_LEGACY)]
    with Nodes("--devices", "1,1") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", *cases, environ=LEGACY)
        expected = on_one_node(topology, nodes)
    assert_answers(found, expected, [[0, 0, address(1)], [1, 0, address(2)]])


@full
def test_a_slow_link_that_loses_packets(on_one_node: OnOneNode, tiny: Path, tmp_path: Path) -> None:
    cases = [f"{backend}:{topology}" for topology in ("tp2", "pp2") for backend in BACKENDS]
    with Nodes("--devices", "1,1", "--delay", "20ms", "--loss", "1%") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", *cases, environ=LEGACY)
        expected = {topology: on_one_node(topology, nodes) for topology in ("tp2", "pp2")}
    for topology in ("tp2", "pp2"):
        of_it = {case: one for case, one in found.items() if case.endswith(topology)}
        ranks = [[0, 0, address(1)], [1, 0, address(2)]]
        assert_answers(of_it, expected[topology], ranks)


@full
def test_a_driver_without_devices(on_one_node: OnOneNode, tiny: Path, tmp_path: Path) -> None:
    with Nodes("--devices", "0,2") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2", "legacy:tp2", environ=LEGACY)
        expected = on_one_node("tp2", nodes)
    refused = found.pop("legacy:tp2")
    assert_answers(found, expected, [[0, 0, address(2)], [1, 1, address(2)]])
    assert_fails(refused, "GPU")


@full
def test_nodes_with_different_numbers_of_devices(
    on_one_node: OnOneNode, tiny: Path, tmp_path: Path
) -> None:
    """A group has to be split; the engine says so, and answers the same."""
    with Nodes("--devices", "3,1") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2pp2", environ=LEGACY)
        expected = on_one_node("tp2pp2", nodes)
        said = (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
    ranks = [[0, 0, address(1)], [1, 1, address(1)], [2, 2, address(1)], [3, 0, address(2)]]
    assert_answers(found, expected, ranks)
    assert "goes over the network" in said


@full
def test_fewer_devices_than_ranks(tiny: Path, tmp_path: Path) -> None:
    with Nodes("--devices", "2,1") as nodes:
        found = nodes.run_cases(
            tiny, tmp_path / "log", "v2:tp2pp2", "legacy:tp2pp2", environ=LEGACY
        )
    for one in found.values():
        assert_fails(one, "GPU")


@full
def test_a_wrong_host_ip_on_the_driver(tiny: Path, tmp_path: Path) -> None:
    with Nodes("--devices", "1,1", "--env", "1:VLLM_HOST_IP=198.18.0.99") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2", "legacy:tp2", environ=LEGACY)
    for one in found.values():
        assert_fails(one, "198.18.0.99", "VLLM_HOST_IP")


@full
def test_a_wrong_host_ip_on_a_worker(on_one_node: OnOneNode, tiny: Path, tmp_path: Path) -> None:
    """Nobody uses it with one group on the driver's node; V2 starts, vLLM's legacy refuses it."""
    with Nodes("--devices", "1,1", "--env", "2:VLLM_HOST_IP=198.18.0.1") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2", "legacy:tp2", environ=LEGACY)
        expected = on_one_node("tp2", nodes)
    refused = found.pop("legacy:tp2")
    assert_answers(found, expected, [[0, 0, address(1)], [1, 0, address(2)]])
    assert_fails(refused, "Every node should have a unique IP address")


@full
def test_two_nodes_that_report_one_address(
    on_one_node: OnOneNode, tiny: Path, tmp_path: Path
) -> None:
    """As containers in the host's network: V2 goes by node ids, legacy by addresses."""
    with Nodes("--devices", "1,1", "--same-address") as nodes:
        found = nodes.run_cases(tiny, tmp_path / "log", "v2:tp2", "legacy:tp2", environ=LEGACY)
        expected = on_one_node("tp2", nodes)
    refused = found.pop("legacy:tp2")
    assert_answers(found, expected, [[0, 0, address(1)], [1, 0, address(1)]])
    assert_fails(refused, "one address of its own" if LEGACY else "unique IP address")
