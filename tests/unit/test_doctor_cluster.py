"""The checks of a cluster, on clusters that were written down, and looking where there is none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from vllm_ray_compat.doctor import cluster
from vllm_ray_compat.doctor.checks import Need
from vllm_ray_compat.doctor.context import Context, Options
from vllm_ray_compat.doctor.examine import examine
from vllm_ray_compat.doctor.findings import Finding, Level
from vllm_ray_compat.doctor.fit import packed, pinned, whole_groups
from vllm_ray_compat.doctor.look import Look, look
from vllm_ray_compat.doctor.registry import chosen
from vllm_ray_compat.doctor.view import (
    BundleSeen,
    Connection,
    Facts,
    GroupSeen,
    HolderSeen,
    Node,
    View,
)
from vllm_ray_compat.names import FLAG_NAME

V2 = {FLAG_NAME: "1"}
LEGACY = {FLAG_NAME: "0"}


def node(number: int, total: float = 2, free: float | None = None, **changes: Any) -> Node:
    address = f"10.0.0.{number}"
    return Node(
        **{
            "id": f"node{number}" + "0" * 20,
            "address": address,
            "total": {"GPU": total, "CPU": 8.0, f"node:{address}": 1.0},
            "free": {"GPU": total if free is None else free, "CPU": 8.0},
            **changes,
        }
    )


def view(*nodes: Node, groups: Iterable[GroupSeen] = (), driver: int = 0) -> View:
    return View(
        address="10.0.0.1:6379",
        ray="2.60.0",
        driver_node=nodes[driver].id,
        nodes=nodes,
        groups=tuple(groups),
    )


def facts(of: Node, **changes: Any) -> Facts:
    return Facts(
        **{
            "node_id": of.id,
            "versions": {"python": "3.11.9", "ray": "2.60.0", "vllm-ray-compat": "0.1.0"},
            "niceness": 0,
            "cores": 8,
            "host_name": of.address,
            "host_name_address": of.address,
            "port_range": "32768-60999",
            "listens": (of.address, 40000),
            **changes,
        }
    )


def ask(
    check: Callable[[Context], Iterable[Finding]],
    seen: View,
    environ: dict[str, str] | None = None,
    options: Options | None = None,
    **looked: Any,
) -> list[Finding]:
    made = Context(
        options or Options(),
        environ or {},
        looks=lambda *_, **__: Look(seen.address, seen, **looked),
    )
    return list(check(made))


def levels(found: Iterable[Finding]) -> list[str]:
    return [finding.level.value for finding in found]


def group(*on: Node | None, state: str = "CREATED", **changes: Any) -> GroupSeen:
    bundles = tuple(
        BundleSeen(index=i, resources={"GPU": 1.0}, node_id=n.id if n else None)
        for i, n in enumerate(on)
    )
    return GroupSeen(**{"id": "ab" * 9, "state": state, "bundles": bundles, **changes})


def test_nodes() -> None:
    found = ask(cluster.nodes, view(node(1), node(2), node(3, alive=False)))
    assert levels(found) == ["ok", "note"]
    assert "2 nodes alive" in found[0].what
    assert "10.0.0.3" in found[1].what


def test_devices_and_their_holders() -> None:
    a, b = node(1, total=4, free=1), node(2)
    engine = HolderSeen(
        what="placement group ab12 'engine' (CREATED)",
        who="made by job 01000000",
        amounts={a.id: {"GPU": 2.0, "CPU": 2.0}},
    )
    seen = view(a, b).model_copy(update={"holders": (engine,)})
    found = ask(cluster.devices, seen)
    assert levels(found) == ["ok", "ok"]
    assert (
        "4 GPU, 1 free; placement group ab12 'engine' (CREATED), made by job 01000000, holds 2"
        in found[0].what
    )
    assert "tasks, or actors that just came or went, hold 1" in found[0].what
    assert "2 GPU, 2 free" in found[1].what
    assert "holds" not in found[1].what
    assert levels(ask(cluster.devices, view(Node(id="x", address="a", total={})))) == ["note"]


def test_another_kind_of_device() -> None:
    other = node(1, total=0)
    npu = other.model_copy(update={"total": {"NPU": 8.0}, "free": {"NPU": 8.0}})
    assert view(npu).device_key == "NPU"
    assert view(node(1)).device_key == "GPU"
    assert view(node(1).model_copy(update={"total": {"CPU": 1.0}})).device_key == "GPU"


def test_waiting_groups() -> None:
    a = node(1)
    assert levels(ask(cluster.waiting_groups, view(a, groups=[group(a)]))) == ["ok"]
    (found,) = ask(cluster.waiting_groups, view(a, groups=[group(a, None, state="PENDING")]))
    assert found.level is Level.WARNING
    assert "waits for {'GPU': 1.0} (PACK)" in found.what


@pytest.mark.parametrize(
    ("free", "sizes", "level", "words"),
    [
        ((2, 2), (2, 2), "ok", "each tensor-parallel group on one node"),
        ((2, 2), (4, 1), "warning", "tensor-parallel group 0 (ranks 0 to 3) is on nodes"),
        ((1, 3), (2, 2), "warning", "is on nodes 10.0.0.1"),
        ((1, 4), (4, 1), "ok", "each tensor-parallel group on one node"),
        ((1, 1, 4), (4, 1), "ok", "each tensor-parallel group on one node"),
        ((1, 1), (2, 2), "problem", "2 of 8 are free"),
        ((4, 4), (8, 2), "problem", "the cluster has 8"),
        ((0, 2), (2, 1), "ok", "2 ranks fit"),
    ],
)
def test_fit(free: tuple[int, ...], sizes: tuple[int, int], level: str, words: str) -> None:
    nodes = [node(i, total=4, free=f) for i, f in enumerate(free, 1)]
    (found,) = ask(cluster.fits, view(*nodes), options=Options(*sizes))
    assert found.level.value == level
    assert words in found.what


def test_fit_says_whether_a_split_can_be_avoided() -> None:
    one, four = node(1, total=4, free=1), node(2, total=4)
    # Legacy has to begin on the driver's node.
    (found,) = ask(cluster.fits, view(one, four), LEGACY, Options(4))
    assert "There is room to avoid it" in (found.do or "")
    (found,) = ask(cluster.fits, view(node(1), node(2)), options=Options(4))
    assert "cannot be avoided" in (found.do or "")
    assert levels(ask(cluster.fits, view(node(1)))) == ["note"]


def test_packing() -> None:
    assert packed({"a": 1, "b": 2}, "a", 4) is None
    made = packed({"a": 1, "b": 2, "c": 3}, "b", 4)
    assert made is not None
    assert [bundle.node_id for bundle in made] == ["b", "b", "c", "c"]
    assert packed({"a": 0.5}, "a", 1) is None
    made = packed({"a": 1, "b": 2, "c": 3}, None, 3)
    assert made is not None
    assert {bundle.node_id for bundle in made} == {"c"}
    free = {"a": 1.0, "b": 4.0}
    assert pinned(free, "a", 1, needs_driver=False) == "a"
    assert pinned(free, "a", 2, needs_driver=False) is None
    assert pinned(free, "a", 2, needs_driver=True) == "a"
    assert pinned({}, "a", 1, needs_driver=False) is None
    assert whole_groups({"a": 3, "b": 4, "c": 1}, 2) == 3


def test_ranks_by_hand() -> None:
    a, b = node(1), node(2)
    seen = view(a, b, groups=[group(a, b, name="engine")])

    def named(text: str) -> list[Finding]:
        return ask(cluster.ranks_by_hand, seen, {**V2, "VLLM_RAY_BUNDLE_INDICES": text})

    assert levels(named("")) == ["ok"]
    assert levels(named("0,1")) == ["ok"]
    (found,) = named("1,0")
    assert found.level is Level.WARNING
    assert [r["bundle"] for r in found.details["v2"]] == [1, 0]
    assert [r["bundle"] for r in found.details["legacy"]] == [0, 1]
    assert "VLLM_RAY_BUNDLE_INDICES=0,1" in (found.do or "")
    (found,) = named("0,7")
    assert found.level is Level.NOTE
    assert "no bundle 7" in found.what
    empty = ask(cluster.ranks_by_hand, view(a), {"VLLM_RAY_BUNDLE_INDICES": "0"})
    assert levels(empty) == ["note"]


@pytest.mark.parametrize(
    ("total", "free", "environ", "level"),
    [
        (2, 2, LEGACY, "ok"),
        (2, 0, LEGACY, "problem"),
        (0, 0, LEGACY, "problem"),
        (0, 0, V2, "ok"),
    ],
)
def test_driver_devices(total: int, free: int, environ: dict[str, str], level: str) -> None:
    seen = view(node(1, total=total, free=free), node(2))
    assert levels(ask(cluster.driver_devices, seen, environ)) == [level]


def test_addresses() -> None:
    assert levels(ask(cluster.addresses, view(node(1), node(2)), V2)) == ["ok"]
    twin = node(2, address="10.0.0.1")
    (found,) = ask(cluster.addresses, view(node(1), twin, node(3)), LEGACY)
    assert found.level is Level.PROBLEM
    assert (found.details["address"], len(found.details["nodes"])) == ("10.0.0.1", 2)
    assert levels(ask(cluster.addresses, view(node(1), twin), V2)) == ["warning"]
    dead = twin.model_copy(update={"alive": False})
    assert levels(ask(cluster.addresses, view(node(1), dead), LEGACY)) == ["ok"]


def test_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = view(node(1), node(2))
    ours = {"VLLM_HOST_IP": "10.0.0.1"}
    assert levels(ask(cluster.own_address, seen, {**LEGACY, **ours})) == ["ok"]
    (found,) = ask(cluster.own_address, seen, {**LEGACY, "VLLM_HOST_IP": "10.0.0.9"})
    assert found.level is Level.PROBLEM
    assert "which is no node's" in found.what
    assert "VLLM_HOST_IP=10.0.0.1" in (found.do or "")
    (found,) = ask(cluster.own_address, seen, {**V2, "VLLM_HOST_IP": "10.0.0.2"})
    assert found.level is Level.WARNING
    assert "another node's" in found.what
    monkeypatch.setattr(cluster, "default_address", lambda: "192.0.2.1")
    assert levels(ask(cluster.own_address, seen, V2)) == ["note"]
    assert levels(ask(cluster.own_address, seen, LEGACY)) == ["problem"]


def test_the_default_address_is_one_of_this_machine() -> None:
    address = cluster.default_address()
    if address is None:
        pytest.skip("this machine has no default route")
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))


def test_versions() -> None:
    a, b = node(1), node(2)
    seen = view(a, b)
    assert levels(ask(cluster.versions, seen, facts=(facts(a), facts(b)))) == ["ok"]
    other = facts(b, versions={"python": "3.11.9", "ray": "2.59.0", "vllm-ray-compat": "0.1.0"})
    (found,) = ask(cluster.versions, seen, facts=(facts(a), other))
    assert found.level is Level.PROBLEM
    assert "ray differs" in found.what
    assert "2.59.0 on 10.0.0.2" in found.what
    bare = {"python": "3.11.9"}
    found_ = ask(cluster.versions, seen, facts=(facts(a, versions=bare), facts(b, versions=bare)))
    assert levels(found_) == ["ok", "warning"]
    silent = Facts(node_id=b.id, error="no worker of Ray answered in time")
    found_ = ask(cluster.versions, seen, facts=(facts(a), silent))
    assert levels(found_) == ["problem", "ok"]
    assert "no worker of Ray answered" in found_[0].what
    (found,) = ask(cluster.versions, seen, cut_short="no answer within 3 s")
    assert (found.level, "within 3 s" in found.what) == (Level.PROBLEM, True)


def test_priorities() -> None:
    a = node(1, total=4)
    (found,) = ask(cluster.priorities, view(a), facts=(facts(a, niceness=15, cores=4),))
    assert found.level is Level.NOTE
    assert levels(ask(cluster.priorities, view(a), facts=(facts(a),))) == ["ok"]


def test_host_names() -> None:
    a, b = node(1), node(2)
    seen = view(a, b)
    assert levels(ask(cluster.host_names, seen, facts=(facts(a), facts(b)))) == ["ok"]
    local = facts(b, host_name_address="127.0.1.1")
    (found,) = ask(cluster.host_names, seen, facts=(facts(a), local))
    assert found.level is Level.WARNING
    assert "leads to 127.0.1.1" in found.what
    named = facts(b, host_name_address=None, gloo_interface="eth0")
    assert levels(ask(cluster.host_names, seen, facts=(facts(a), named))) == ["ok"]
    assert levels(ask(cluster.host_names, view(a), facts=(local,))) == ["ok"]


def joined(*nodes: Node, but_for: dict[tuple[int, int], str] | None = None) -> Any:
    return tuple(
        Connection(
            source=nodes[i].id,
            target=nodes[j].id,
            address=nodes[j].address,
            port=40000 + j,
            error=(but_for or {}).get((i, j)),
        )
        for i in range(len(nodes))
        for j in range(len(nodes))
        if i != j
    )


def test_reach() -> None:
    a, b, c = node(1), node(2), node(3)
    seen, told = view(a, b, c), (facts(a), facts(b), facts(c))
    (found,) = ask(cluster.reach, seen, facts=told, connections=joined(a, b, c))
    assert found.level is Level.OK
    assert "6 connections" in found.what
    late = "no answer within 5 s"
    broken = joined(a, b, c, but_for={(0, 2): late, (1, 2): late, (2, 0): "Connection refused"})
    first, second = ask(cluster.reach, seen, facts=told, connections=broken)
    assert first.level is Level.PROBLEM
    assert first.details["address"] == "10.0.0.3"
    assert first.details["sources"] == [a.id, b.id]
    assert "10.0.0.3:40002" in first.what
    assert "32768-60999" in (first.do or "")
    assert second.details["target"] == a.id
    assert levels(ask(cluster.reach, view(a))) == ["ok"]


def test_reach_that_was_not_seen_to_the_end() -> None:
    a, b = node(1), node(2)
    seen = view(a, b)
    assert levels(ask(cluster.reach, seen, cut_short="no answer within 3 s")) == ["problem"]
    both = (facts(a), facts(b))
    (found,) = ask(cluster.reach, seen, facts=both, cut_short="no answer within 3 s")
    assert "not tried to the end: no answer within 3 s" in found.what
    deaf = facts(b, listens=None, error="cannot listen on its own address 10.0.0.2")
    (found,) = ask(cluster.reach, seen, facts=(facts(a), deaf), connections=())
    assert "it could not listen" in found.what


def environ(**more: str) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}, **more}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://127.0.0.1:10001", "Ray Client's"),
        ("local", "none to look at"),
        ("127.0.0.1:1", "nobody answers at the Ray address 127.0.0.1:1: Connection refused"),
        ("no.such.host.invalid:6379", "nobody answers"),
        ("127.0.0.1:99999", "nobody answers"),
    ],
)
def test_an_address_where_there_is_no_cluster(address: str, words: str) -> None:
    found = look(address, environ(), probes=False, timeout_s=5)
    assert found.view is None
    assert found.asked
    assert words in (found.unreachable or "")
    assert look(None, environ(RAY_ADDRESS=address), probes=False, timeout_s=5) == found


def test_an_address_that_is_mute_ends_in_time() -> None:
    """Somebody listens and never answers, as a head that hangs: Ray alone would wait for long."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []
        stop = threading.Event()

        def accept() -> None:
            server.settimeout(0.2)
            while not stop.is_set():
                try:
                    held.append(server.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        options = Options(ray_address=where, timeout_s=2)
        found = examine(options, environ(), chosen(["nodes", "flag"]))
        stop.set()
        thread.join()
        for connection in held:
            connection.close()
    assert found.exit_code == 3
    told = {checked.name: checked.left_out for checked in found.checks}
    assert told["flag"] is None
    expected = f"the process that looked at the Ray cluster {where} did not end within 2 s"
    assert expected in (told["nodes"] or "")


def test_needs() -> None:
    made = Context(Options(), {}, looks=lambda *_, **__: Look("auto", unreachable="there is none"))
    assert made.missing(Need.CLUSTER) == "there is none"
    assert made.missing(Need.PROBES) == "there is none"
