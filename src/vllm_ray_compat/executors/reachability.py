"""Whether the nodes of an engine can talk to one another, asked before anything waits for it.

Ray reaches its nodes through ports that it was started with. The executors need more: the message
queues, the store of ``torch.distributed`` and its backends use TCP ports that the kernel chooses.
Where a firewall has only Ray's open, none of them says so: ZeroMQ tries again for ever, and the
others for minutes. So one process of every node listens on such a port, and all the others connect
to it; that takes milliseconds, and nothing at all where the engine has one node.

What is sent to the workers travels by value: a worker's node need not have this package.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import ray

from vllm_ray_compat.executors.startup import Deadline, WorkerStartError, collect
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)

#: Seconds a connection may take: a lost packet is repeated after 1, 3 and 7.
CONNECT_S = 8.0

#: Whose address a node is reached by.
RAYS, VLLMS = "the address that Ray knows", "VLLM_HOST_IP"


class UnreachableNodeError(WorkerStartError):
    """Nodes of an engine do not reach each other, so that its workers would wait for ever."""


class Listener(NamedTuple):
    """A port of the kernel's choosing on one address of a node, or why there is none.

    Attributes:
        use: whose address it is, :data:`RAYS` or :data:`VLLMS`.
        address: IPv4 or IPv6.
        port: 0 when it could not be bound.
        fault: why not.
        word: what it says to who connects; another one says that another process has answered.
        ports: the range the port is from, as the kernel shows it (Linux), or nothing.
    """

    use: str
    address: str
    port: int
    fault: str
    word: str
    ports: str


class Node(NamedTuple):
    """One node of an engine: its id, its ranks, and how to run a function on it.

    Attributes:
        call: takes a function of one argument (what it may keep things on); returns a reference.
            None for the node of the driver, which does it itself.
    """

    node_id: str
    ranks: tuple[int, ...]
    call: Callable[[Callable[[Any], Any]], Any] | None


class Fault(NamedTuple):
    """One node that did not reach a listener of another."""

    source: Node
    target: Node
    listener: Listener
    what: str


# -- sent to the nodes -------------------------------------------------------------------------


def listening(rays_address: str | None = None, *, vllms_too: bool) -> Callable[[Any], list[Any]]:
    """Return a function that opens the listeners of a node, and returns them as tuples.

    Args:
        rays_address: the address to listen on; None: what Ray calls the node.
        vllms_too: also on the address that vLLM calls its own there, where it is another one.
    """

    def listen(keeper: Any) -> list[Any]:
        import contextlib
        import os
        import secrets
        import socket
        import threading
        from pathlib import Path

        first = rays_address
        if first is None:
            import ray

            first = ray.util.get_node_ip_address()
        wanted = [("the address that Ray knows", first)]
        if vllms_too:
            vllms = os.environ.get("VLLM_HOST_IP")
            if not vllms:
                from vllm.utils.network_utils import get_ip

                vllms = get_ip()
            if vllms != first:
                wanted.append(("VLLM_HOST_IP", vllms))
        ports = ""
        with contextlib.suppress(OSError):
            range_ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
            ports = " to ".join(range_.split())

        def serve(server: socket.socket, word: str) -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                with contextlib.suppress(OSError), connection:
                    connection.sendall(word.encode())

        opened: list[socket.socket] = []
        found: list[Any] = []
        for use, address in wanted:
            word = secrets.token_hex(16)
            try:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                server = socket.create_server((address, 0), family=family)
            except OSError as error:
                fault = os.strerror(error.errno) if error.errno else str(error)
                found.append((use, address, 0, fault, word, ports))
                continue
            opened.append(server)
            threading.Thread(target=serve, args=(server, word), daemon=True).start()
            found.append((use, address, server.getsockname()[1], "", word, ports))
        keeper.raycompat_listeners = opened
        return found

    return listen


def connecting(
    targets: Sequence[tuple[str, int, str]], timeout_s: float
) -> Callable[[Any], list[str]]:
    """Return a function that connects to *targets* and returns what went wrong with each.

    Args:
        targets: address, port and word of each listener.
        timeout_s: seconds each may take.
    """
    asked = [tuple(target) for target in targets]

    def connect(_keeper: Any) -> list[str]:
        import concurrent.futures
        import socket

        def one(target: Any) -> str:
            address, port, word = target
            try:
                with socket.create_connection((address, port), timeout=timeout_s) as connection:
                    heard = b""
                    while len(heard) < len(word) and (part := connection.recv(64)):
                        heard += part
            except TimeoutError:
                return f"no answer within {timeout_s:.0f} s"
            except OSError as error:
                return error.strerror or str(error)
            return "" if heard.decode(errors="replace") == word else "another process answers there"

        with concurrent.futures.ThreadPoolExecutor(max(1, len(asked))) as pool:
            return list(pool.map(one, asked))

    return connect


def closing() -> Callable[[Any], None]:
    """Return a function that closes the listeners of a node."""

    def close(keeper: Any) -> None:
        import contextlib
        import socket

        for server in keeper.__dict__.pop("raycompat_listeners", []):
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            server.close()

    return close


# -- the check ---------------------------------------------------------------------------------


def check(
    nodes_of_ranks: Sequence[str],
    actors: Sequence[Any],
    *,
    tensor_parallel_size: int,
    store_by_vllms_address: bool,
    deadline: Deadline,
) -> None:
    """Have all nodes of an engine connect to one another; nothing where they are one.

    Args:
        nodes_of_ranks: the node of each rank.
        actors: the Ray actor of each rank; idle.
        tensor_parallel_size: ranks of a group, whose queue uses vLLM's own address.
        store_by_vllms_address: the store of ``torch.distributed`` is on the driver's node by
            vLLM's own address (legacy), not by Ray's.
        deadline: of the start.

    Raises:
        UnreachableNodeError: some do not; every such pair is named.
        WorkerStartError: a worker died meanwhile, or did not answer.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = _nodes(nodes_of_ranks, actors, here)
    if len(nodes) == 1:
        return
    users = {here} if store_by_vllms_address else set()
    users |= split_group_leaders(nodes_of_ranks, tensor_parallel_size)
    keeper = SimpleNamespace()
    try:
        heard = _on_all(
            nodes, keeper, lambda node: listening(vllms_too=node.node_id in users), deadline
        )
        listeners = {i: [Listener(*one) for one in found] for i, found in heard.items()}
        faults = [
            Fault(node, node, one, one.fault)
            for i, node in enumerate(nodes)
            for one in listeners[i]
            if one.fault
        ]
        targets = {
            i: [(j, one) for j in listeners if j != i for one in listeners[j] if not one.fault]
            for i in listeners
        }
        answers = _on_all(
            nodes,
            keeper,
            lambda node: connecting(
                [(o.address, o.port, o.word) for _, o in targets[nodes.index(node)]], CONNECT_S
            ),
            deadline,
        )
        for i, whats in answers.items():
            for (j, one), what in zip(targets[i], whats, strict=True):
                if what:
                    faults.append(Fault(nodes[i], nodes[j], one, what))
    finally:
        closing()(keeper)
        for node in nodes:
            if node.call is not None:
                node.call(closing())
    if faults:
        raise UnreachableNodeError(explain(faults, nodes, listeners))
    _logger.debug("The %d nodes of the engine reach each other", len(nodes))


def _nodes(nodes_of_ranks: Sequence[str], actors: Sequence[Any], here: str) -> list[Node]:
    """Return the driver's node, which the driver stands for, and those of the ranks."""
    ranks: dict[str, list[int]] = {here: []}
    for rank, node in enumerate(nodes_of_ranks):
        ranks.setdefault(node, []).append(rank)
    return [
        Node(node, tuple(of), None if node == here else actors[of[0]].__ray_call__.remote)
        for node, of in ranks.items()
    ]


def split_group_leaders(nodes_of_ranks: Sequence[str], tensor_parallel_size: int) -> set[str]:
    """Return the nodes of the first ranks of those tensor-parallel groups that are split.

    The others of the group connect to a queue there.
    """
    groups = (
        nodes_of_ranks[first : first + tensor_parallel_size]
        for first in range(0, len(nodes_of_ranks), tensor_parallel_size)
    )
    return {group[0] for group in groups if len(set(group)) > 1}


def _on_all(
    nodes: Sequence[Node],
    keeper: Any,
    function_for: Callable[[Node], Callable[[Any], Any]],
    deadline: Deadline,
) -> dict[int, Any]:
    """Run a function on every node at the same time; returns results by index of the node."""
    functions = [function_for(node) for node in nodes]
    refs: dict[int, Any] = {}
    own: dict[int, Callable[[Any], Any]] = {}
    for i, (node, function) in enumerate(zip(nodes, functions, strict=True)):
        if node.call is None:
            own[i] = function
        else:
            refs[i] = node.call(function)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        ours = {i: pool.submit(function, keeper) for i, function in own.items()}
        by_rank = collect(
            {nodes[i].ranks[0]: ref for i, ref in refs.items()},
            "The check of the network between the nodes",
            deadline,
        )
        found = {i: future.result() for i, future in ours.items()}
    return {**found, **{i: by_rank[nodes[i].ranks[0]] for i in refs}}


# -- what is told ------------------------------------------------------------------------------


def explain(
    faults: Sequence[Fault], nodes: Sequence[Node], listeners: Mapping[int, Sequence[Listener]]
) -> str:
    """Return the text of the error: which addresses, why they are needed, and what to do."""
    address_of = {node.node_id: listeners[i][0].address for i, node in enumerate(nodes)}

    def called(node: Node) -> str:
        ranks = f"rank {', '.join(map(str, node.ranks))}" if node.ranks else ""
        who = [part for part in ("" if node.call else "driver", ranks) if part]
        return f"{address_of[node.node_id]} ({', '.join(who)})"

    unbound = [fault for fault in faults if fault.source is fault.target]
    blocked = [fault for fault in faults if fault.source is not fault.target]
    texts = []
    for fault in unbound:
        texts.append(
            f"Node {called(fault.source)} has no address {fault.listener.address} "
            f"({fault.what}), which its {fault.listener.use} says and the others would connect "
            f"to. Set VLLM_HOST_IP to {address_of[fault.source.node_id]} there, or unset it."
            if fault.listener.use == VLLMS
            else f"Node {called(fault.source)} cannot listen on {fault.listener.address}, "
            f"by which Ray knows it ({fault.what}). Start Ray there with --node-ip-address, and an "
            "address that the node has and the others reach."
        )
    if blocked:
        pairs = "; ".join(
            f"{called(fault.source)} cannot reach {joined(fault.listener)} on node "
            f"{called(fault.target)}: {fault.what}"
            for fault in blocked[:6]
        )
        more = f"; and {len(blocked) - 6} more" if len(blocked) > 6 else ""
        ranges = sorted({fault.listener.ports for fault in blocked if fault.listener.ports})
        ports = f" ({' and '.join(ranges)} on these nodes)" if ranges else ""
        texts.append(
            f"The nodes of this engine cannot reach each other: {pairs}{more}. Beside Ray's own "
            f"ports, workers use TCP ports that the kernel chooses{ports}, in both directions. "
            "Open them between the nodes (firewall, security group, network policy), or run all "
            "ranks on one node."
        )
        if any(fault.listener.use == VLLMS for fault in blocked):
            texts.append(
                "Where VLLM_HOST_IP is set, it must be an address of its own node that the others "
                "reach; where it is not, vLLM takes that of the default route."
            )
    twice = sorted({a for a in address_of.values() if list(address_of.values()).count(a) > 1})
    for address in twice:
        sharing = " and ".join(n.node_id for n in nodes if address_of[n.node_id] == address)
        texts.append(
            f"Nodes {sharing} report one address, {address}: each needs its own "
            "(ray start --node-ip-address)."
        )
    return " ".join(texts)


def joined(listener: Listener) -> str:
    """Return ``address:port``, with brackets where the address is IPv6."""
    host = f"[{listener.address}]" if ":" in listener.address else listener.address
    return f"{host}:{listener.port}"
