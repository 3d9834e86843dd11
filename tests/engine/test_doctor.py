"""``doctor`` against a real Ray cluster: two nodes of one machine, which report one address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from vllm_ray_compat.names import FLAG_NAME

#: Two nodes, one device each on the driver's and three on the other; a group that holds two of
#: them, and one that waits. It ends when its standard input does.
CLUSTER = textwrap.dedent(
    """
    import json, sys
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.placement_group import placement_group

    if __name__ == "__main__":
        memory = 100 << 20
        cluster = Cluster(
            initialize_head=True,
            head_node_args=dict(num_cpus=2, num_gpus=1, object_store_memory=memory),
        )
        other = cluster.add_node(num_cpus=2, num_gpus=3, object_store_memory=memory)
        ray.init(cluster.address, log_to_driver=False)
        group = placement_group([{"GPU": 1}] * 2, strategy="STRICT_PACK", name="engine")
        assert group.wait(30)
        waits = placement_group([{"GPU": 5}], name="too-large")
        print("UP", json.dumps(dict(address=cluster.address, other=other.node_id)), flush=True)
        sys.stdin.read()
        ray.shutdown()
        cluster.shutdown()
    """
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(CLUSTER)
    environ = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    with (
        (script.parent / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, str(script)],
            env={**environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        up = next((line for line in lines if line.startswith("UP ")), None)
        assert up is not None, (script.parent / "log").read_text()
        yield json.loads(up.partition(" ")[2])
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def doctor(cluster: dict[str, str], *arguments: str, **environ: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vllm_ray_compat", "doctor", "--json"),
            *("--address", cluster["address"], *arguments),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=120,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    return done.returncode, {
        **{checked["name"]: checked["findings"] for checked in found["checks"]},
        "left out": {c["name"]: c["left_out"] for c in found["checks"] if c["left_out"]},
    }


def levels(findings: list[dict[str, Any]]) -> list[str]:
    return [finding["level"] for finding in findings]


def test_everything_there_is_to_see(cluster: dict[str, str]) -> None:
    code, found = doctor(
        cluster,
        *("--only", "cluster", "--tp", "2"),
        **{FLAG_NAME: "0", "VLLM_RAY_BUNDLE_INDICES": "1,0", "VLLM_HOST_IP": "203.0.113.7"},
    )
    assert (code, found["left out"]) == (1, {})
    assert cluster["other"] in found["nodes"][0]["details"]["nodes"]
    devices = {f["details"]["total"]: f for f in found["devices"]}
    assert (devices[1]["details"]["free"], devices[3]["details"]["free"]) == (1, 1)
    assert "'engine' (CREATED), made by job" in devices[3]["what"]
    assert devices[3]["what"].endswith(", holds 2")
    (waiting,) = found["waiting-groups"]
    assert "placement group too-large is PENDING: it waits for {'GPU': 5.0}" in waiting["what"]
    # Two nodes, one address: legacy would refuse to start.
    (shared,) = found["addresses"]
    assert (shared["level"], len(shared["details"]["nodes"])) == ("problem", 2)
    # One free device on each node: two ranks of one group are apart.
    (fit,) = found["fit"]
    assert (fit["level"], fit["details"]["free"]) == ("warning", 2)
    assert "tensor-parallel group 0 (ranks 0 to 1) is on nodes" in fit["what"]
    (own,) = found["own-address"]
    assert (own["level"], own["details"]["vllm"]) == ("problem", "203.0.113.7")
    # Both bundles of the group are on the other node: sorted or not, it is the same order.
    (order,) = found["rank-order"]
    assert [rank["bundle"] for rank in order["details"]["legacy"]] == [1, 0]
    # Every node was asked, by a process on it, and reaches the other one.
    (versions,) = found["versions"]
    assert versions["level"] == "ok"
    assert "on 2 nodes" in versions["what"]
    assert "vllm-ray-compat" in versions["what"]
    assert len(found["priority"]) == 2
    (reach,) = found["reach"]
    assert reach["level"] == "ok"
    assert "(2 connections)" in reach["what"]


def test_it_leaves_nothing_in_the_cluster(cluster: dict[str, str]) -> None:
    """Its actors are gone, and what it does not need it does not start."""
    code, found = doctor(cluster, "--only", "reach")
    assert (code, found["left out"], levels(found["reach"])) == (0, {}, ["ok"])
    script = (
        "import ray, sys\n"
        f"ray.init({cluster['address']!r}, log_to_driver=False, logging_level='ERROR')\n"
        "from ray._private.state import actors\n"
        "print([a['State'] for a in actors().values()])"
    )
    states = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert "ALIVE" not in states.stdout
    assert "DEAD" in states.stdout, states.stderr


def test_a_cluster_that_wants_a_token(ray_environment: dict[str, str]) -> None:
    """Without it nothing can be looked at, and the reason says so; with it all can."""
    address = {"address": ray_environment["RAY_ADDRESS"]}
    code, found = doctor(
        address, "--only", "nodes", "--timeout", "5", RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN=""
    )
    assert code == 3
    assert "InvalidAuthToken" in found["left out"]["nodes"]
    code, found = doctor(address, "--only", "cluster", "--tp", "2", **ray_environment)
    assert (code, found["left out"], levels(found["fit"])) == (0, {}, ["ok"])
