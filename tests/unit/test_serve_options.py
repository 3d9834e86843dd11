"""What Ray Serve, Serve LLM and Ray Data are given, and what is refused."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.documents import read
from vllm_ray_compat.errors import EXIT_USAGE
from vllm_ray_compat.serve import Placement, PlacementOptionsError, placement_options


def test_the_replica_has_a_bundle_without_a_device_and_each_worker_one_with_a_device() -> None:
    assert placement_options(2) == {
        "placement_group_bundles": [{"CPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}],
        "placement_group_strategy": "PACK",
        "ray_actor_options": {"num_cpus": 1, "num_gpus": 0},
    }


def test_the_guide_shows_what_it_returns() -> None:
    (shown,) = re.findall(
        r"`placement_options\(2\)` is\n\n```text\n(.*?)```", read("docs/serve.md"), re.DOTALL
    )
    assert ast.literal_eval(shown) == placement_options(2)


def test_a_worker_for_each_rank() -> None:
    bundles = placement_options(2, 3, cpus_per_worker=0)["placement_group_bundles"]
    assert bundles == [{"CPU": 1}, *[{"GPU": 1}] * 6]
    assert Placement(2, 3).workers == 6


def test_no_two_bundles_are_one_object() -> None:
    bundles = placement_options(2)["placement_group_bundles"]
    bundles[1]["CPU"] = 7
    assert bundles[2]["CPU"] == 1


def test_everything_can_be_chosen() -> None:
    assert placement_options(
        1,
        2,
        cpus_per_worker=0.5,
        replica_cpus=4,
        strategy="STRICT_PACK",
        device="NPU",
        worker_resources={"accelerator_type:910B": 0.001},
    ) == {
        "placement_group_bundles": [
            {"CPU": 4},
            {"CPU": 0.5, "NPU": 1, "accelerator_type:910B": 0.001},
            {"CPU": 0.5, "NPU": 1, "accelerator_type:910B": 0.001},
        ],
        "placement_group_strategy": "STRICT_PACK",
        "ray_actor_options": {"num_cpus": 4, "num_gpus": 0},
    }


def test_what_the_replica_asks_for_is_in_its_bundle() -> None:
    given = {"memory": 1000, "resources": {"disk": 2}, "runtime_env": {"env_vars": {"A": "b"}}}
    options = placement_options(2, ray_actor_options=given)
    assert options["placement_group_bundles"][0] == {"CPU": 1, "memory": 1000, "disk": 2}
    assert options["ray_actor_options"] == {"num_cpus": 1, "num_gpus": 0, **given}


def test_serve_llm_adds_the_replica_itself() -> None:
    assert Placement(2, 1, strategy="SPREAD").for_serve_llm() == {
        "bundles": [{"CPU": 1, "GPU": 1}] * 2,
        "strategy": "SPREAD",
    }


def test_data_gets_a_bundle_for_its_actor() -> None:
    assert Placement(1, 2, cpus_per_worker=0).for_data() == {
        "bundles": [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}],
        "strategy": "PACK",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 (a whole number, 1 or more)"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True"),
        ({"tensor_parallel_size": 2.0}, "tensor_parallel_size=2.0"),
        ({"pipeline_parallel_size": "2"}, "pipeline_parallel_size='2'"),
        ({"cpus_per_worker": -1}, "cpus_per_worker=-1 (a number, 0 or more)"),
        ({"cpus_per_worker": float("nan")}, "cpus_per_worker=nan"),
        ({"replica_cpus": 0}, "replica_cpus=0 (a number above 0)"),
        ({"replica_cpus": "1"}, "replica_cpus='1'"),
        ({"strategy": "PACKED"}, "STRICT_SPREAD) Did you mean 'PACK'?"),
        ({"strategy": None}, "strategy=None"),
        ({"device": "CPU"}, "device='CPU'"),
        ({"device": ""}, "device=''"),
        (
            {"worker_resources": {"CPU": 1}},
            "worker_resources['CPU'] (give cpus_per_worker instead)",
        ),
        ({"worker_resources": {"GPU": 1}}, "worker_resources['GPU'] (each worker has one device"),
        ({"worker_resources": {"NPU": 1}, "device": "NPU"}, "worker_resources['NPU']"),
        ({"worker_resources": {"x": 0}}, "worker_resources['x']=0 (a number above 0)"),
        ({"worker_resources": [1]}, "worker_resources=[1] (a mapping"),
        ({"ray_actor_options": ["num_cpus"]}, "ray_actor_options=['num_cpus'] (a mapping"),
        ({"ray_actor_options": {"num_cpus": 2}}, "['num_cpus'] (give replica_cpus instead)"),
        ({"ray_actor_options": {"num_gpus": 2}}, "['num_gpus'] (the replica must hold no device"),
        ({"ray_actor_options": {"accelerator_type": "H100"}}, "'accelerator_type:NAME': 0.001"),
        (
            {"ray_actor_options": {"resources": {"NPU": 1}}, "device": "NPU"},
            "ray_actor_options['resources']['NPU'] (the replica must hold no device",
        ),
    ],
)
def test_what_cannot_be_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PlacementOptionsError) as caught:
        placement_options(**{"tensor_parallel_size": 2, **arguments})
    assert words in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE


def test_all_faults_at_once() -> None:
    with pytest.raises(PlacementOptionsError) as caught:
        placement_options(
            0,
            -1,
            cpus_per_worker=-1,
            replica_cpus=0,
            strategy="x",
            ray_actor_options={"num_gpus": 1},
        )
    for name in ("tensor_p", "pipeline_p", "cpus_per_worker", "replica_cpus", "strategy"):
        assert name in str(caught.value)
    assert "ray_actor_options['num_gpus']" in str(caught.value)


def test_the_module_imports_nothing_of_ray_or_vllm() -> None:
    """A file of deployments uses it where neither may be imported yet."""
    script = (
        "import sys; from vllm_ray_compat.serve import placement_options; placement_options(2);"
        "print(*[m for m in ('ray', 'vllm', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_serve_and_ray_data_accept_them() -> None:
    """Their own validation, in a process of its own: it imports Ray."""
    script = """
from ray import serve
from ray.llm._internal.common.placement import PlacementGroupConfig
from vllm_ray_compat.serve import Placement, placement_options
given = {"memory": 1000, "resources": {"disk": 2}}
for options in (placement_options(2), placement_options(1, 2, ray_actor_options=given)):
    deployment = serve.deployment(**options)(type("Engine", (), {}))
    kept = deployment._replica_config
    assert kept.placement_group_bundles == options["placement_group_bundles"]
for config in (Placement(2, 2).for_serve_llm(), Placement(1, 2).for_data()):
    PlacementGroupConfig(**config)
print("accepted")
"""
    pytest.importorskip("ray.serve")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "accepted", done.stderr
