"""What a placement group asks for, against what the nodes have and who holds it. Pure.

Read from Ray by :mod:`.placement_wait`; here it is judged and put into words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_ray_compat.executors.placement import PlacementError

#: Ray's resource of one node: ``node:10.0.0.1``.
NODE_PREFIX = "node:"

#: Below this, an amount of a resource is rounding.
_NOTHING = 1e-4

Resources = Mapping[str, float]


@dataclass(frozen=True)
class Node:
    """A living node: its id, its address as Ray knows it, and its resources, all and free."""

    id: str
    address: str
    total: Resources
    free: Resources


@dataclass(frozen=True)
class Holder:
    """Who holds resources.

    Attributes:
        what: the placement group or actor, with its id, name and state.
        who: who made it, as far as that is known.
        amounts: node id -> what it holds there.
    """

    what: str
    who: str
    amounts: Mapping[str, Resources]


def why_never(specs: Sequence[Resources], strategy: str, nodes: Sequence[Node]) -> str | None:
    """Say why *nodes*, even if all were free, can never hold the bundles; None if they may.

    Necessary conditions only: a group that passes may still not fit.
    """
    for index, spec in enumerate(specs):
        if not any(_fits(spec, node.total) for node in nodes):
            return f"no node has {_listed(spec)} in all, which bundle {index} asks for"
    asked: Counter[str] = Counter()
    for spec in specs:
        asked.update({name: amount for name, amount in spec.items() if amount > 0})
    for name, amount in asked.items():
        there = sum(node.total.get(name, 0) for node in nodes)
        if there + _NOTHING < amount:
            return f"all nodes together have {_listed({name: there})}, and it asks for {amount:g}"
    if strategy == "STRICT_PACK" and not any(_fits(asked, node.total) for node in nodes):
        return f"no node has {_listed(asked)} in all, which STRICT_PACK asks of one node"
    if strategy == "STRICT_SPREAD" and len(nodes) < len(specs):
        return f"there are {len(nodes)} nodes, and STRICT_SPREAD asks for {len(specs)}"
    return None


def _fits(spec: Resources, there: Resources) -> bool:
    return all(there.get(n, 0) + _NOTHING >= amount for n, amount in spec.items() if amount > 0)


def check_addresses(
    specs: Sequence[Resources], nodes: Sequence[Node], driver_node: str, host_ip: str | None
) -> None:
    """Check the bundles that are pinned to the driver's node by its address.

    vLLM's legacy executor takes what ``VLLM_HOST_IP`` says, or the address of the default route,
    and asks Ray for that node; no autoscaler ever adds a node of that address.

    Args:
        specs: the bundles.
        nodes: the living nodes.
        driver_node: id of the one this process is on.
        host_ip: ``VLLM_HOST_IP``, None where it is not set.

    Raises:
        PlacementError: a bundle is pinned elsewhere.
    """
    pinned = {
        name.removeprefix(NODE_PREFIX)
        for spec in specs
        for name in spec
        if name.startswith(NODE_PREFIX)
    }
    here = next((node.address for node in nodes if node.id == driver_node), "unknown")
    for address in sorted(pinned - {here}):
        of_another = any(node.address == address for node in nodes)
        known = ", ".join(sorted(node.address for node in nodes))
        raise PlacementError(
            (
                f"VLLM_HOST_IP={host_ip} is wrong: "
                if host_ip
                else f"vLLM takes {address} for this machine's address: "
            )
            + (
                f"{address} is the address of another node of the Ray cluster"
                if of_another
                else f"no node of the Ray cluster has the address {address}"
            )
            + f". Ray knows this node as {here}, and its nodes are {known}. The legacy executor "
            f"reserves a device on {NODE_PREFIX}{address}, and would wait for it for ever. Set "
            f"VLLM_HOST_IP={here} in this process"
            + (", or unset it." if host_ip and host_ip != here else ".")
        )


def report(
    specs: Sequence[Resources], nodes: Sequence[Node], holders: Sequence[Holder]
) -> tuple[str, str]:
    """Return what each node has of the resources asked for, and who holds what is not free."""
    names = sorted({n for spec in specs for n in spec if not n.startswith(NODE_PREFIX)})
    there = "; ".join(
        f"{node.address} ({node.id[:8]}): "
        + ", ".join(
            f"{name} {node.free.get(name, 0):g} free of {node.total.get(name, 0):g}"
            for name in names
        )
        for node in nodes
    )
    addresses = {node.id: f"{node.address} ({node.id[:8]})" for node in nodes}
    held = [
        f"{holder.what}, {holder.who}: {_where(amounts, addresses)}"
        for holder in holders
        if (amounts := _only(holder.amounts, names))
    ]
    rest = {
        node.id: unexplained
        for node in nodes
        if (unexplained := _unexplained(node, names, holders))
    }
    if rest:
        held.append(f"tasks, or actors that just came or went: {_where(rest, addresses)}")
    return there or "none", "; ".join(held) or "nobody"


def _unexplained(node: Node, names: Iterable[str], holders: Iterable[Holder]) -> Resources:
    found = {}
    for name in names:
        explained = sum(h.amounts.get(node.id, {}).get(name, 0) for h in holders)
        left = node.total.get(name, 0) - node.free.get(name, 0) - explained
        if left > _NOTHING:
            found[name] = round(left, 4)
    return found


def _only(amounts: Mapping[str, Resources], names: Iterable[str]) -> dict[str, Resources]:
    wanted = set(names)
    found = {
        node: {n: a for n, a in resources.items() if n in wanted and a > _NOTHING}
        for node, resources in amounts.items()
    }
    return {node: resources for node, resources in found.items() if resources}


def _where(amounts: Mapping[str, Resources], addresses: Mapping[str, str]) -> str:
    return ", ".join(
        f"{_listed(resources)} on {addresses.get(node, node[:8] or 'no node')}"
        for node, resources in amounts.items()
    )


def _listed(resources: Resources) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def describe_specs(specs: Sequence[Resources]) -> str:
    """Return the bundles, equal ones counted: ``2 x {GPU 1}, 1 x {CPU 4}``."""
    counted = Counter(_listed(spec) for spec in specs)
    return ", ".join(f"{times} x {{{text}}}" for text, times in counted.items())
