"""Wait for a placement group, not for ever, and say at the end who holds what it wants.

What is read here comes from Ray's GCS: Ray's state API needs the dashboard, which may not run.
"""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from vllm_ray_compat.executors.placement import PlacementError
from vllm_ray_compat.executors.placement_demand import (
    Holder,
    Node,
    Resources,
    describe_specs,
    report,
    why_never,
)
from vllm_ray_compat.names import LOGGER_NAME
from vllm_ray_compat.settings import read_settings

_logger = logging.getLogger(LOGGER_NAME)

#: Seconds to wait while others hold the devices, or an autoscaler may bring some. Below the 600 s
#: that vLLM's front end gives its engine, so that this error is the one that is seen.
PATIENCE_S = 300.0
#: Seconds to wait where the nodes there are can never hold it: some may be about to join.
GRACE_S = 15.0

#: The variable that replaces both.
TIMEOUT_NAME = "RAYCOMPAT_PLACEMENT_TIMEOUT_S"

#: Between two looks at the group's state (seconds).
_POLL_S = 1.0

#: Where Ray's monitor says what its autoscaler does.
_AUTOSCALER_KEY = "__autoscaling_status"
#: What version 1 calls the kind of a node that it did not start itself.
_NO_KIND = "node_"
#: The label by which a node tells its kind (Ray's launcher and KubeRay set it).
_KIND_LABEL = "ray.io/node-group"


def wait_until_ready(handle: PlacementGroup, origin: str) -> None:
    """Wait until Ray has placed the group.

    Args:
        handle: the group.
        origin: whose it is, for messages: ``that this engine made``.

    Raises:
        PlacementError: it was removed, or is not ready at the deadline: ``TIMEOUT_NAME`` where that
            is set; else :data:`PATIENCE_S`, or :data:`GRACE_S` where the nodes there are can never
            hold it and no autoscaler runs.
        SettingsError: a setting is invalid.
    """
    wanted = read_settings().placement_timeout_s
    began = time.monotonic()
    say_at = 10.0
    while True:
        table = _table(handle, origin)
        if table["state"] == "CREATED":
            return
        never = why_never(_specs(table), table["strategy"], nodes())
        limit = wanted or (GRACE_S if never and not autoscales() else PATIENCE_S)
        waited = time.monotonic() - began
        if waited >= limit:
            raise PlacementError(_late(handle, table, origin, waited, never))
        if waited >= say_at:
            _logger.warning("%s", _late(handle, table, origin, waited, never))
            say_at *= 2
        _pause(handle, min(_POLL_S, limit - waited))


def _pause(handle: PlacementGroup, seconds: float) -> None:
    """Wait for the group; no shorter than a moment, whatever Ray says of it."""
    ray.wait([handle.ready()], timeout=seconds)
    time.sleep(0.02)


def specs_of(handle: PlacementGroup, origin: str) -> list[Resources]:
    """Return the bundles of a group, ready or not.

    Raises:
        PlacementError: there is no such group.
    """
    return _specs(_table(handle, origin))


def _table(handle: PlacementGroup, origin: str) -> dict[str, Any]:
    found: dict[str, Any] = placement_group_table(handle)
    if found.get("state") in (None, "REMOVED"):
        raise PlacementError(
            f"The placement group {handle.id.hex()} {origin} does not exist (any more): it was "
            "removed, or is of another Ray cluster. Create it anew, and keep it until the engine "
            "has ended."
        )
    return found


def _specs(table: Mapping[str, Any]) -> list[Resources]:
    bundles = table["bundles"]
    return [bundles[index] for index in sorted(bundles)]


def _late(
    handle: PlacementGroup,
    table: Mapping[str, Any],
    origin: str,
    waited: float,
    never: str | None,
) -> str:
    specs, living = _specs(table), nodes()
    there, held = report(specs, living, holders(handle.id.hex()))
    lost: list[int] = []
    if table["state"] == "RESCHEDULING":  # it was ready once, and a node died
        ids = {node.id for node in living}
        lost = sorted(i for i, node in table["bundles_to_node_id"].items() if node not in ids)
    return (
        f"The placement group {handle.id.hex()} {origin} is not ready after {waited:.0f} s "
        f"(state {table['state']}, {table['strategy']}). It asks for {describe_specs(specs)}. "
        + (f"The node of bundle {', '.join(map(str, lost))} is dead. " if lost else "")
        + (f"These nodes can never hold it: {never}. " if never else "")
        + f"Nodes: {there}. Held by: {held}. "
        + (
            "Add nodes, or lower the tensor or pipeline parallel size"
            if never
            else "End what holds them, add nodes, or lower the tensor or pipeline parallel size"
        )
        + f"; to wait longer, set {TIMEOUT_NAME} (seconds)."
    )


def nodes() -> list[Node]:
    """Return the living nodes, by address."""
    free = ray._private.state.available_resources_per_node()
    found = [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"],
            free.get(node["NodeID"], {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def holders(waiting: str = "") -> list[Holder]:
    """Return the placement groups and actors that hold resources; *waiting* is the one in question.

    Read by Ray's own internals, for want of another way without the dashboard. What a Ray of
    another make does not tell is left out, and a line in the log says so.
    """
    found: list[Holder] = []
    for read in (_groups, _actors):
        try:
            found += read(waiting)
        except Exception as error:  # why the group is late must be told in any case
            _logger.warning(
                "Ray %s does not say which %s hold resources: %r",
                ray.__version__,
                "placement groups" if read is _groups else "actors",
                error,
            )
    return found


def _groups(waiting: str) -> Iterable[Holder]:
    from ray.core.generated import gcs_pb2

    accessor = ray._private.state.state._connect_and_get_accessor()
    jobs = _jobs()
    for raw in accessor.get_placement_group_table():
        group = gcs_pb2.PlacementGroupTableData.FromString(raw)
        identity = group.placement_group_id.hex()
        state = gcs_pb2.PlacementGroupTableData.PlacementGroupState.Name(group.state)
        if state == "REMOVED":
            continue
        amounts: dict[str, defaultdict[str, float]] = {}
        for bundle in group.bundles:
            node = bundle.node_id.hex()
            if node.strip("f"):  # it has one
                on_node = amounts.setdefault(node, defaultdict(float))
                for name, amount in bundle.unit_resources.items():
                    on_node[name] += amount
        if identity == waiting:
            yield Holder("this group itself", "for bundles whose node lives", amounts)
            continue
        name = f" {group.name!r}" if group.name else ""
        yield Holder(
            f"placement group {identity}{name} ({state})",
            f"made by {_job(group.creator_job_id.hex(), jobs)}"
            + (", detached" if group.is_detached else ""),
            amounts,
        )


def _actors(_waiting: str) -> Iterable[Holder]:
    from ray.core.generated import gcs_pb2

    accessor = ray._private.state.state._connect_and_get_accessor()
    jobs = _jobs()
    for raw in accessor.get_actor_table(None, "ALIVE"):
        actor = gcs_pb2.ActorTableData.FromString(raw)
        if actor.placement_group_id.hex().strip("f"):
            continue  # what it holds is its group's
        name = f" {actor.name!r}" if actor.name else ""
        yield Holder(
            f"actor {actor.class_name}{name} {actor.actor_id.hex()} (pid {actor.pid})",
            f"of {_job(actor.job_id.hex(), jobs)}" + (", detached" if actor.is_detached else ""),
            {actor.address.node_id.hex(): dict(actor.required_resources)},
        )


def _jobs() -> dict[str, Mapping[str, Any]]:
    return {job["JobID"]: job for job in ray._private.state.jobs()}


def _job(job_id: str, jobs: Mapping[str, Mapping[str, Any]]) -> str:
    """Say which program a job is; no more than its first two words, for the rest may be secret."""
    job = jobs.get(job_id)
    if job is None:
        return f"job {job_id}"
    words = str(job.get("Entrypoint", "")).split()[:2]
    return (
        f"job {job_id} ({' '.join(words)}, pid {job['DriverPid']} on {job['DriverIPAddress']}"
        + (", ended)" if job.get("IsDead") else ")")
    )


def autoscales() -> bool:
    """Say whether an autoscaler that can add nodes runs in this cluster.

    ``ray start`` starts its monitor in any case; without a configuration it reports the nodes
    there are as kinds of their own, and adds none.
    """
    return any(_asked_safely(look) for look in (_reported, _version_2))


def _asked_safely(look: Callable[[], bool]) -> bool:
    try:
        return look()
    except Exception as error:  # a Ray of another make; the waiting is shorter then, no more
        _logger.debug("Ray does not say whether an autoscaler runs: %r", error)
        return False


def _reported() -> bool:
    """Say whether the monitor (version 1) knows kinds of nodes."""
    raw = ray.experimental.internal_kv._internal_kv_get(_AUTOSCALER_KEY)
    found = json.loads(raw).get("autoscaler_report") or {} if raw else {}
    kinds = {
        *found.get("active_nodes", {}),
        *(found.get("pending_launches") or {}),
        *(kind for _, kind, *_ in found.get("pending_nodes") or []),
    }
    return any(not kind.startswith(_NO_KIND) for kind in kinds)


def _version_2() -> bool:
    """Say whether version 2 runs, and nodes were started as of a kind that it knows."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    if not is_autoscaler_v2(fetch_from_server=True):
        return False
    return any(node["Alive"] and node["Labels"].get(_KIND_LABEL) for node in ray.nodes())
