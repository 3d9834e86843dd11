"""Checks of a Ray cluster, on what was seen of it."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from vllm_ray_compat.doctor.configuration import HOST_IP
from vllm_ray_compat.doctor.context import Context
from vllm_ray_compat.doctor.findings import Finding, note, ok, problem, warning
from vllm_ray_compat.doctor.fit import packed, pinned, whole_groups
from vllm_ray_compat.doctor.machine import judge_niceness
from vllm_ray_compat.doctor.view import Facts, GroupSeen, Node, View
from vllm_ray_compat.executors.placement import (
    Bundle,
    PlacementError,
    RankPlacement,
    SplitGroup,
    place,
    split_groups,
)
from vllm_ray_compat.executors.rank_order import INDICES_NAME, read_bundle_indices, sorted_again
from vllm_ray_compat.schedule import Backend

#: Below this, an amount of a resource is rounding.
_ROUNDING = 1e-4
_FREE_THEM = "Free devices (the check `devices` says who has them), or lower the parallel sizes."


def _view(context: Context) -> View:
    view = context.cluster.view
    assert view is not None  # a check that needs a cluster is run with one alone
    return view


def nodes(context: Context) -> Iterator[Finding]:
    """Tell which nodes there are."""
    view = _view(context)
    living = view.alive
    yield ok(
        f"Ray {view.ray} at {view.address}: {len(living)} node{'s' * (len(living) != 1)} alive, "
        f"looked at from {view.node(view.driver_node)}",
        nodes={node.id: node.address for node in living},
    )
    for node in view.nodes:
        if not node.alive:
            yield note(f"{node} is dead; Ray remembers it.", str(node))


def devices(context: Context) -> Iterator[Finding]:
    """Tell the devices of every node, and who holds those that are not free."""
    view = _view(context)
    key = view.device_key
    for node in view.alive:
        total, free = node.total.get(key, 0), (node.free or {}).get(key, 0)
        if node.free is None:
            yield note(f"{node}: {total:g} {key}; how many are free Ray does not say.", str(node))
            continue
        holders = _holders(view, node, key, total - free)
        yield ok(
            f"{node}: {total:g} {key}, {free:g} free{''.join(f'; {text}' for text in holders)}",
            str(node),
            total=total,
            free=free,
        )


def _holders(view: View, node: Node, key: str, taken: float) -> Iterator[str]:
    for holder in view.holders:
        held = holder.amounts.get(node.id, {}).get(key, 0)
        if held:
            taken -= held
            yield f"{holder.what}, {holder.who}, holds {held:g}"
    if taken > _ROUNDING:
        yield f"tasks, or actors that just came or went, hold {taken:g}"


def waiting_groups(context: Context) -> Iterator[Finding]:
    """Find placement groups that wait for what is not there."""
    view = _view(context)
    found = False
    for group in view.groups:
        if group.state == "CREATED":
            continue
        found = True
        wants = ", ".join(str(b.resources) for b in group.bundles if b.node_id is None)
        yield warning(
            f"The {group} is {group.state}: it waits for {wants or 'its bundles'} "
            f"({group.strategy}). An engine behind it waits with it.",
            str(group),
            "If a bundle names node:ADDRESS, see that Ray has a node of that address. "
            f"{_FREE_THEM}",
            state=group.state,
            id=group.id,
        )
    if not found:
        yield ok("no placement group waits")


def fits(context: Context) -> Iterator[Finding]:
    """See whether an engine of the sizes asked for gets its devices, and how its groups lie."""
    view = _view(context)
    world_size = context.options.world_size
    if world_size is None:
        yield note("Whether an engine fits was not asked.", do="Give --tp and --pp.")
        return
    key = view.device_key
    total = {node.id: node.total.get(key, 0.0) for node in view.alive}
    free = {node.id: (node.free or {}).get(key, 0.0) for node in view.alive}
    tp = context.options.tp
    in_all, now = (int(sum(map(int, each.values()))) for each in (total, free))
    counts: dict[str, Any] = {"wanted": world_size, "total": in_all, "free": now}
    if in_all < world_size:
        yield problem(
            f"{world_size} ranks need {world_size} {key}, and the cluster has {in_all}.",
            view.address,
            f"Add nodes (`ray start --address=…` on each), or lower the parallel sizes. A node "
            f"without {key} may have been started before its driver, or on the CPU without "
            "--num-gpus.",
            **counts,
        )
        return
    needs_driver = context.backend is Backend.LEGACY and free.get(view.driver_node, 0) >= 1
    begins = pinned(free, view.driver_node, tp, needs_driver=needs_driver)
    bundles = packed(free, begins, world_size)
    if bundles is None:
        yield problem(
            f"{world_size} ranks need {world_size} {key}, and {now} of {in_all} are free: a start "
            "now waits for a placement group.",
            view.address,
            _FREE_THEM,
            **counts,
        )
        return
    placed = place(
        bundles,
        view.driver_node,
        world_size,
        tensor_parallel_size=tp,
        needs_driver=needs_driver,
    )
    split = split_groups(placed, tp)
    if not split:
        yield ok(
            f"{world_size} ranks fit ({now} {key} free), each tensor-parallel group on one node",
            **counts,
        )
        return
    named = "; ".join(str(group) for group in _by_address(view, split))
    if whole_groups(free, tp) >= world_size // tp:
        do = (
            "There is room to avoid it: reserve a placement group with the bundles of each group "
            "on one node (STRICT_PACK), or free the devices of the nodes named."
        )
    else:
        do = (
            f"It cannot be avoided with what is free: use nodes with {tp} {key} each, or a smaller "
            "tensor parallel size and more pipeline stages."
        )
    yield warning(
        f"{world_size} ranks fit, but over nodes: {named}. Each layer's all-reduce then goes over "
        "the network.",
        view.address,
        do,
        "https://github.com/ray-project/ray/issues/59547",
        **counts,
    )


def _by_address(view: View, split: list[SplitGroup]) -> Iterator[str]:
    for group in split:
        text = str(group)
        for node_id in group.nodes:
            text = text.replace(node_id, str(view.node(node_id)))
        yield text


def ranks_by_hand(context: Context) -> Iterator[Finding]:
    """Show the ranks that VLLM_RAY_BUNDLE_INDICES makes of the placement groups there are."""
    view = _view(context)
    listed = read_bundle_indices(context.environ)
    if listed is None or listed.indices is None:
        yield ok(f"{INDICES_NAME} is not set, or is no list (see bundle-indices)")
        return
    groups = [group for group in view.groups if group.state == "CREATED"]
    if not groups:
        yield note("There is no placement group to hold it against.", INDICES_NAME)
    for group in groups:
        yield _ranks_in(view, group, listed.indices, context.backend)


def _ranks_in(
    view: View, group: GroupSeen, indices: tuple[int, ...], backend: Backend | None
) -> Finding:
    key = view.device_key
    bundles = [Bundle(b.index, b.node_id or "", b.resources.get(key, 0.0)) for b in group.bundles]
    where = str(group)
    try:
        v2 = place(
            bundles,
            view.driver_node,
            len(indices),
            indices,
            alive={node.id for node in view.alive},
        )
    except PlacementError as error:
        return note(
            f"In the {where} an engine would refuse it: {error}",
            where,
            "If the engine is meant for this group, correct it.",
        )
    addresses = {node.id: node.address for node in view.nodes}
    legacy = sorted_again(v2, view.driver_node, addresses)
    told = {"v2": _told(view, v2), "legacy": _told(view, legacy)}
    details: dict[str, Any] = {
        "group": group.id,
        **{name: _listed(order) for name, order in (("v2", v2), ("legacy", legacy))},
    }
    if told["v2"] == told["legacy"]:
        return ok(f"in the {where} both executors make the same ranks: {told['v2']}", **details)
    here = f" Here it is {backend.value}." if backend is not None else ""
    return warning(
        f"In the {where} the two executors make other ranks.{here} V2: {told['v2']}. Legacy: "
        f"{told['legacy']}.",
        INDICES_NAME,
        f"For the same with both: {INDICES_NAME}={','.join(str(p.bundle_index) for p in legacy)}.",
        **details,
    )


def _told(view: View, placed: list[RankPlacement]) -> str:
    return ", ".join(
        f"rank {p.rank} in bundle {p.bundle_index} on {view.node(p.node_id)}" for p in placed
    )


def _listed(placed: list[RankPlacement]) -> list[dict[str, object]]:
    return [
        {"rank": p.rank, "bundle": p.bundle_index, "node": p.node_id, "local_rank": p.local_rank}
        for p in placed
    ]


def driver_devices(context: Context) -> Iterator[Finding]:
    """See whether the driver's node has a device, which legacy cannot do without."""
    view = _view(context)
    key = view.device_key
    driver = view.driver
    total = driver.total.get(key, 0) if driver else 0
    free = (driver.free or {}).get(key, 0) if driver else 0
    where = str(view.node(view.driver_node))
    if total >= 1 and free >= 1:
        yield ok(f"the driver's node has {total:g} {key}, {free:g} free", where)
        return
    has = f"The driver's node has {total:g} {key}, {free:g} of them free"
    if context.backend is Backend.V2:
        yield ok(f"{has[0].lower()}{has[1:]}: V2 needs none there; legacy would not start", where)
        return
    tell = problem if context.backend is Backend.LEGACY else warning
    yield tell(
        f"{has}. Legacy pins a bundle there: it fails with 'Current node has no {key} available', "
        "or waits.",
        where,
        "Start the engine on a node with a device, free one there, or use V2.",
        "https://github.com/vllm-project/vllm/issues/29688",
        total=total,
        free=free,
    )


def addresses(context: Context) -> Iterator[Finding]:
    """Find nodes that report the same address."""
    view = _view(context)
    by_address: dict[str, list[Node]] = defaultdict(list)
    for node in view.alive:
        by_address[node.address].append(node)
    shared = {address: group for address, group in by_address.items() if len(group) > 1}
    if not shared:
        yield ok("every node has an address of its own")
    for address, group in shared.items():
        ids = [node.id for node in group]
        tell = warning if context.backend is Backend.V2 else problem
        yield tell(
            f"{len(group)} nodes report the address {address} "
            f"({', '.join(f'node {i[:8]}' for i in ids)}). Legacy tells nodes apart by it and "
            "refuses to start; on several machines, connections go to the wrong one.",
            address,
            "Start Ray with --node-ip-address=ADDRESS, another on each node; give each node its "
            "own VLLM_HOST_IP.",
            "vLLM 0.32.0, vllm/v1/executor/ray_executor.py",
            address=address,
            nodes=ids,
        )


def own_address(context: Context) -> Iterator[Finding]:
    """Compare the address that vLLM takes here with the one by which Ray knows this node."""
    view = _view(context)
    named = context.environ.get(HOST_IP, "")
    taken = named or default_address()
    said_by = f"{HOST_IP} says" if named else "vLLM takes the default route's address,"
    driver = view.node(view.driver_node)
    if taken is not None and (taken == driver.address or f"node:{taken}" in driver.total):
        yield ok(f"vLLM and Ray have the same address for this node: {taken}")
        return
    known = {node.address for node in view.alive}
    other = ", which is another node's" if taken in known else ", which is no node's"
    what = f"Ray knows this node by {driver.address}; {said_by} {taken}{other}."
    do = f"Set {HOST_IP}={driver.address} on this node."
    facts = {"ray": driver.address, "vllm": taken}
    if context.backend is Backend.V2 and not named:
        yield note(
            f"{what} V2 takes Ray's for its queues; legacy would wait for ever.",
            str(driver),
            do,
            **facts,
        )
        return
    yield (warning if context.backend is Backend.V2 else problem)(
        f"{what} Legacy pins a bundle to node:{taken} and waits for a node that is not there; "
        "torch.distributed tells other nodes that address.",
        HOST_IP if named else str(driver),
        do,
        "https://github.com/vllm-project/vllm/issues/30016",
        **facts,
    )


def default_address() -> str | None:
    """Return the address of the default route, as vLLM finds it; nothing is sent."""
    for family, far in (
        (socket.AF_INET, "8.8.8.8"),
        (socket.AF_INET6, "2001:4860:4860::8888"),
    ):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 80))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _facts(context: Context) -> tuple[list[Facts], list[Finding]]:
    """Return the facts of nodes that told any, and what to tell of the others."""
    view = _view(context)
    seen = context.cluster
    if seen.facts is None:
        what = f"The nodes could not be asked: {seen.cut_short}."
        do = "Give it more time with --timeout, and see `ray status` and Ray's logs of the nodes."
        return [], [problem(what, view.address, do)]
    faults = [
        problem(
            f"{view.node(facts.node_id)}: {facts.error}.",
            str(view.node(facts.node_id)),
            "See that Ray's workers start there (its log: raylet.out), and the node's address.",
        )
        for facts in seen.facts
        if facts.error is not None
    ]
    order = {node.id: place for place, node in enumerate(view.alive)}
    told = [facts for facts in seen.facts if facts.versions]
    return sorted(told, key=lambda facts: order.get(facts.node_id, len(order))), faults


def versions(context: Context) -> Iterator[Finding]:
    """Compare what is installed on the nodes."""
    view = _view(context)
    told, faults = _facts(context)
    yield from faults
    names = sorted({name for facts in told for name in facts.versions})
    differing = False
    for name in names:
        by_version: dict[str, list[str]] = defaultdict(list)
        for facts in told:
            by_version[facts.versions.get(name, "not installed")].append(
                str(view.node(facts.node_id))
            )
        if len(by_version) > 1:
            differing = True
            each = "; ".join(f"{v} on {', '.join(n)}" for v, n in sorted(by_version.items()))
            yield problem(
                f"{name} differs from node to node: {each}.",
                name,
                "Use one image for all nodes.",
                name=name,
                versions=dict(by_version),
            )
    if told and not differing:
        each = ", ".join(f"{name} {told[0].versions[name]}" for name in names)
        yield ok(f"the same on {len(told)} node{'s' * (len(told) != 1)}: {each}")
    without = [f for f in told if "vllm-ray-compat" not in f.versions]
    if told and len(without) == len(told):
        yield warning(
            "This package is on no node of the cluster: workers load their plugins there.",
            view.address,
            "Install it in the image of the nodes.",
        )


def priorities(context: Context) -> Iterator[Finding]:
    """See at what priority Ray's workers really run, and whether they have cores of their own."""
    view = _view(context)
    told, _ = _facts(context)
    for facts in told:
        if facts.niceness is None or facts.cores is None:
            continue
        node = view.node(facts.node_id)
        ranks = max(1, int(node.total.get(view.device_key, 0)))
        yield judge_niceness(str(facts.niceness), facts.cores, ranks, str(node))


def host_names(context: Context) -> Iterator[Finding]:
    """Find nodes whose host name leads to the loopback: Gloo listens there."""
    view = _view(context)
    told, _ = _facts(context)
    if len({node.address for node in view.alive}) < 2:
        yield ok("all nodes have one address: Gloo stays on it")
        return
    fine = True
    for facts in told:
        if facts.gloo_interface or not (facts.host_name_address or "127.").startswith("127."):
            continue
        fine = False
        leads = f"to {facts.host_name_address}" if facts.host_name_address else "nowhere"
        yield warning(
            f"The host name {facts.host_name} leads {leads} there, and GLOO_SOCKET_IFNAME is not "
            "set: Gloo listens on the loopback, and other nodes do not reach it.",
            str(view.node(facts.node_id)),
            "Set GLOO_SOCKET_IFNAME to the interface of the node's address, or correct /etc/hosts.",
            "https://docs.pytorch.org/docs/stable/distributed.html",
        )
    if fine and told:
        yield ok("host names lead to addresses that other nodes can use, or an interface is named")


def reach(context: Context) -> Iterator[Finding]:
    """See whether every node reaches an ephemeral TCP port of every other one."""
    view = _view(context)
    if len(view.alive) < 2:
        yield ok("one node: nothing goes between nodes")
        return
    told, faults = _facts(context)
    if not told:
        yield from faults
        return
    tried = context.cluster.connections
    if tried is None:
        yield problem(
            "The connections between nodes were not tried to the end: "
            f"{context.cluster.cut_short}.",
            view.address,
            "Give it more time with --timeout.",
        )
        return
    ranges = {facts.node_id: facts.port_range for facts in told}
    failed: dict[tuple[str, str, int, str], list[str]] = defaultdict(list)
    for one in tried:
        if one.error is not None:
            failed[(one.target, one.address, one.port, one.error)].append(one.source)
    for (target, address, port, error), sources in failed.items():
        yield problem(
            f"{address}:{port} on {view.node(target)} could not be reached from "
            f"{', '.join(str(view.node(source)) for source in sources)}: {error}. V2's message "
            "queues and torch.distributed use such ports, chosen by the kernel.",
            f"{address}:{port}",
            f"Open the ephemeral TCP ports ({ranges.get(target) or '32768-60999'}) between the "
            "nodes, both ways, not Ray's own ports alone.",
            address=address,
            port=port,
            target=target,
            sources=sources,
            error=error,
        )
    silent = {node.id for node in view.alive} - {facts.node_id for facts in told if facts.listens}
    for node_id in sorted(silent):
        yield problem(
            f"Whether {view.node(node_id)} can be reached is not known: it could not listen.",
            str(view.node(node_id)),
            "See the check `versions` for what it says.",
        )
    if not failed and not silent:
        yield ok(
            f"each of {len(told)} nodes reaches an ephemeral TCP port of every other one "
            f"({len(tried)} connections)"
        )
