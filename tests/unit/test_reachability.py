"""Nodes that reach each other or do not: real sockets on loopback addresses stand for nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from vllm_ray_compat.executors import reachability
from vllm_ray_compat.executors.reachability import (
    RAYS,
    VLLMS,
    Fault,
    Listener,
    Node,
    UnreachableNodeError,
    explain,
    listening,
    split_group_leaders,
)
from vllm_ray_compat.executors.startup import Deadline

DRIVER, OTHER = "127.0.0.1", "127.0.0.2"


class FakeActor:
    """An actor on a node of its own: runs what it is sent at once, after a journey by value."""

    def __init__(self, address: str, host_ip: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address = address
        self.host_ip = host_ip
        self.alter: Callable[[Any], Any] = lambda found: found
        self.sent = 0
        self._patch = monkeypatch

    @property
    def __ray_call__(self) -> Any:
        return SimpleNamespace(remote=self._call)

    def _call(self, function: Callable[[Any], Any]) -> Any:
        self.sent += 1
        travelled = cloudpickle.loads(cloudpickle.dumps(function))
        with self._patch.context() as patch:
            patch.setattr("ray.util.get_node_ip_address", lambda: self.address)
            patch.setenv("VLLM_HOST_IP", self.host_ip)
            return self.alter(travelled(self))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeActor]:
    """An actor on another node; the driver is on its own."""
    monkeypatch.setattr(
        reachability,
        "ray",
        SimpleNamespace(
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "driver-node")
        ),
    )
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: DRIVER)
    monkeypatch.setenv("VLLM_HOST_IP", DRIVER)
    monkeypatch.setattr(reachability, "collect", lambda refs, what, deadline: refs)
    monkeypatch.setattr(reachability, "CONNECT_S", 0.3)
    actor = FakeActor(OTHER, OTHER, monkeypatch)
    yield actor
    assert "raycompat_listeners" not in actor.__dict__, "left open"


def check(nodes: list[str], actors: list[Any], tp: int = 1, by_vllms: bool = False) -> None:
    reachability.check(
        nodes,
        actors,
        tensor_parallel_size=tp,
        store_by_vllms_address=by_vllms,
        deadline=Deadline(10),
    )


def test_nodes_that_reach_each_other_pass(other: FakeActor) -> None:
    check(["driver-node", "other-node"], [None, other], tp=2)
    assert other.sent == 3


def test_one_node_is_asked_nothing(other: FakeActor) -> None:
    check(["driver-node", "driver-node"], [None, None], tp=2)
    assert other.sent == 0


def test_a_driver_without_ranks_takes_part(other: FakeActor) -> None:
    other.alter = _all_refused
    with pytest.raises(UnreachableNodeError, match=r"127\.0\.0\.1 \(driver\) cannot reach"):
        check(["other-node"], [other])


def _all_refused(found: Any) -> Any:
    """What a node tells of ports that nobody listens on."""
    if found and isinstance(found[0], tuple):
        with socket.socket() as probe:
            probe.bind((OTHER, 0))
            closed = probe.getsockname()[1]
        return [(use, address, closed, *rest) for use, address, _, *rest in found]
    return found


def test_a_port_that_is_not_reached_is_named(other: FakeActor) -> None:
    other.alter = _all_refused
    with pytest.raises(UnreachableNodeError) as caught:
        check(["driver-node", "other-node"], [None, other])
    text = str(caught.value)
    assert "127.0.0.1 (driver, rank 0) cannot reach 127.0.0.2:" in text
    assert "on node 127.0.0.2 (rank 1): Connection refused" in text
    assert "TCP ports that the kernel chooses (" in text
    assert "in both directions" in text


def test_silence_ends(other: FakeActor) -> None:
    """A full backlog drops what comes, as a firewall does."""
    with socket.socket() as deaf:
        deaf.bind((OTHER, 0))
        deaf.listen(0)
        address = deaf.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(address)
            other.alter = lambda found: (
                [(use, host, address[1], *rest) for use, host, _, *rest in found]
                if found and isinstance(found[0], tuple)
                else found
            )
            with pytest.raises(UnreachableNodeError, match=r"127\.0\.0\.2:\d+.*: no answer within"):
                check(["driver-node", "other-node"], [None, other])
        finally:
            for filler in fillers:
                filler.close()


def test_another_process_that_answers_is_no_worker(other: FakeActor) -> None:
    other.alter = lambda found: (
        [(*one[:4], "0" * 32, one[5]) for one in found]
        if found and isinstance(found[0], tuple)
        else found
    )
    with pytest.raises(UnreachableNodeError, match="another process answers there"):
        check(["driver-node", "other-node"], [None, other])


def test_an_address_of_another_machine_in_vllm_host_ip(other: FakeActor) -> None:
    other.host_ip = "203.0.113.9"
    with pytest.raises(UnreachableNodeError) as caught:
        check(["other-node", "driver-node"], [other, None], tp=2)
    text = str(caught.value)
    assert "Node 127.0.0.2 (rank 0) has no address 203.0.113.9" in text
    assert "Set VLLM_HOST_IP to 127.0.0.2 there, or unset it." in text
    assert "firewall" not in text


def test_vllm_host_ip_does_not_matter_where_nobody_uses_it(other: FakeActor) -> None:
    other.host_ip = "203.0.113.9"
    check(["driver-node", "other-node"], [None, other], tp=1)
    check(["driver-node", "other-node"], [None, other], tp=2)  # the driver's node leads the group


def test_the_store_of_legacy_is_reached_by_the_drivers_vllm_host_ip(
    other: FakeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", "203.0.113.9")
    check(["driver-node", "other-node"], [None, other])
    with pytest.raises(UnreachableNodeError, match=r"has no address 203\.0\.113\.9"):
        check(["driver-node", "other-node"], [None, other], by_vllms=True)


def test_a_listener_that_cannot_be_is_told() -> None:
    keeper = SimpleNamespace()
    (told,) = listening("203.0.113.9", vllms_too=False)(keeper)
    found = Listener(*told)
    assert (found.use, found.port) == (RAYS, 0)
    assert found.fault == "Cannot assign requested address"
    assert keeper.raycompat_listeners == []


@pytest.mark.parametrize(
    ("nodes", "tp", "leaders"),
    [
        ("aabb", 2, ""),
        ("abab", 2, "a"),
        ("aaab", 2, "a"),
        ("bbba", 2, "b"),
        ("abcd", 1, ""),
        ("abba", 2, "ab"),
    ],
)
def test_who_leads_a_split_group(nodes: str, tp: int, leaders: str) -> None:
    assert split_group_leaders(list(nodes), tp) == set(leaders)


def text_of(*whats: tuple[int, int, str, str], addresses: tuple[str, ...]) -> str:
    nodes = [Node(f"node-{i}", (i,), None if i == 0 else print) for i in range(len(addresses))]
    listeners = {
        i: [Listener(RAYS, address, 40000 + i, "", "w", "32768 to 60999")]
        for i, address in enumerate(addresses)
    }
    faults = [
        Fault(nodes[i], nodes[j], listeners[j][0]._replace(use=use), what)
        for i, j, use, what in whats
    ]
    return explain(faults, nodes, listeners)


def test_one_address_for_two_nodes_is_told() -> None:
    text = text_of(
        (1, 0, RAYS, "Connection refused"), addresses=("10.0.0.1", "10.0.0.2", "10.0.0.2")
    )
    assert "Nodes node-1 and node-2 report one address, 10.0.0.2" in text


def test_ipv6_has_brackets() -> None:
    text = text_of((1, 0, RAYS, "no answer within 8 s"), addresses=("fd00::1", "fd00::2"))
    assert "fd00::2 (rank 1) cannot reach [fd00::1]:40000" in text


def test_many_pairs_are_counted() -> None:
    addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    whats = [(i, j, RAYS, "no answer within 8 s") for i in range(4) for j in range(4) if i != j]
    text = text_of(*whats, addresses=addresses)
    assert text.count("cannot reach 10.") == 6
    assert "and 6 more" in text


def test_an_address_of_vllms_has_a_hint() -> None:
    text = text_of((1, 0, VLLMS, "Connection refused"), addresses=("10.0.0.1", "10.0.0.2"))
    assert "VLLM_HOST_IP is set" in text
