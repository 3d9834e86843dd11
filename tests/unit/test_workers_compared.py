"""Where ranks are placed, what their environment is, and what engines differ in."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from vllm_ray_compat.parity.capture import Worker
from vllm_ray_compat.parity.engines import engine_differences
from vllm_ray_compat.parity.placement import compare_placement
from vllm_ray_compat.parity.redaction import is_safe, redact
from vllm_ray_compat.parity.synthetic import synthetic_capture
from vllm_ray_compat.parity.worker_environment import compare_environments
from vllm_ray_compat.parity.worker_probe import _bundle


def worker(rank: int, **changes: Any) -> Worker:
    base = {
        "rank": rank,
        "local_rank": rank,
        "pid": 100 + rank,
        "node_ip": "192.0.2.1",
        "node_id": "n0",
        "worker_class": "a:B",
        "devices": {"GPU": [str(rank)]},
    }
    return Worker(**{**base, **changes})


def placed(left: list[Worker], right: list[Worker]) -> list[tuple[int, str, str]]:
    return [(d.rank, d.field, d.result) for d in compare_placement(left, right)]


TWO = [worker(0), worker(1)]


def test_a_list_of_bundles_that_legacy_sorts_again_is_found() -> None:
    """VLLM_RAY_BUNDLE_INDICES=2,0,1, bundle 2 on the other node: V2 keeps it, legacy does not."""
    other = {"local_rank": 0, "node_id": "n1", "devices": {"GPU": ["0"]}}
    legacy = [worker(0), worker(1), worker(2, **other)]
    v2 = [
        worker(0, **other),
        worker(1, local_rank=0, devices={"GPU": ["0"]}),
        worker(2, local_rank=1, devices={"GPU": ["1"]}),
    ]
    assert [
        (rank, field) for rank, field, result in placed(legacy, v2) if result == "different"
    ] == [
        (0, "node"),
        (1, "local_rank"),
        (2, "local_rank"),
        (2, "node"),
    ]


def test_other_bundles_are_told_and_not_judged() -> None:
    listed = [worker(0, bundle=1), worker(1, bundle=0)]
    assert placed([worker(0, bundle=0), worker(1, bundle=1)], listed) == [
        (0, "bundle", "noted"),
        (1, "bundle", "noted"),
    ]
    assert placed(TWO, listed) == []  # mp, or a capture of before


def test_the_bundle_is_read_from_the_names_of_rays_resources() -> None:
    group = "3c8144f4c5ba44a9f56ebcc4445301000000"
    assert _bundle([f"GPU_group_{group}", f"GPU_group_12_{group}"]) == 12
    assert _bundle(["CPU", "GPU", f"bundle_group_{group}"]) is None


def test_the_same_structure_elsewhere_is_equal() -> None:
    elsewhere = [
        worker(r, pid=9, node_id="m", node_ip="192.0.2.9", devices={"GPU": [str(r + 4)]})
        for r in range(2)
    ]
    assert placed(TWO, elsewhere) == []


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        ([worker(0)], [(1, "rank", "different")]),
        ([worker(0, local_rank=1), worker(1, local_rank=0)],
         [(0, "local_rank", "different"), (1, "local_rank", "different")]),
        # On another node its device is the first one.
        ([worker(0), worker(1, node_id="n1")],
         [(1, "node", "different"), (1, "devices", "noted")]),
        ([worker(0, devices={"GPU": ["1"]}), worker(1)],
         [(0, "devices", "different"), (1, "devices", "different")]),
        ([worker(0, devices={"GPU": ["0", "2"]}), worker(1)], [(0, "devices", "different")]),
        # Ray assigned them the other way round; the executors use them by local rank.
        ([worker(0, devices={"GPU": ["1"]}), worker(1, devices={"GPU": ["0"]})],
         [(0, "devices", "noted"), (1, "devices", "noted")]),
        # mp has no Ray to ask.
        ([worker(0, devices={}), worker(1, devices={})], []),
    ],
)  # fmt: skip
def test_what_differs(right: list[Worker], expected: list[tuple[int, str, str]]) -> None:
    assert placed(TWO, right) == expected


def test_in_one_cluster_a_node_is_itself() -> None:
    left = [worker(0, local_rank=0), worker(1, local_rank=0, node_id="n1")]
    swapped = [worker(0, local_rank=0, node_id="n1"), worker(1, local_rank=0)]
    other = [worker(0, local_rank=0, node_id="m1"), worker(1, local_rank=0, node_id="m0")]
    assert placed(left, swapped) == [(0, "node", "different"), (1, "node", "different")]
    assert placed(left, other) == []


def test_the_tenth_device_comes_after_the_second() -> None:
    left = [worker(0, devices={"GPU": ["2"]}), worker(1, devices={"GPU": ["10"]})]
    assert placed(TWO, left) == []


@pytest.mark.parametrize(
    "name", ["VLLM_USE_V2_MODEL_RUNNER", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "RAYCOMPAT_CPU",
             "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"]
)  # fmt: skip
def test_safe_names(name: str) -> None:
    assert is_safe(name)


@pytest.mark.parametrize(
    "name", ["VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HOME", "PATH", "RAY_ADDRESS",
             "VLLM_HOST_IP", "NCCL_AUTH_COOKIE", "VLLM_S3_PASSWORD", "https_proxy", "MY_SETTING"]
)  # fmt: skip
def test_unsafe_names(name: str) -> None:
    assert not is_safe(name)


def test_no_secret_is_kept() -> None:
    kept = redact({"HF_TOKEN": "hf_secret", "OTHER": "hf_secret", "NCCL_DEBUG": "INFO"})
    assert "hf_secret" not in str(kept)
    assert kept["NCCL_DEBUG"] == "INFO"
    assert kept["HF_TOKEN"] == "(set)", "a weak one could be guessed from a digest"
    assert kept["OTHER"].startswith("sha256:")
    others = redact({"OTHER": "a", "ANOTHER": "a"})
    assert others["OTHER"] != others["ANOTHER"], "equal values must not be recognisable"
    assert kept == redact({"NCCL_DEBUG": "INFO", "OTHER": "hf_secret", "HF_TOKEN": "hf_secret"})


def test_environments_are_compared_by_name_and_rank() -> None:
    left = [worker(r, environment=redact({"A": "1", "NCCL_DEBUG": "INFO"})) for r in range(2)]
    right = [
        worker(0, environment=redact({"A": "2", "NCCL_DEBUG": "INFO"})),
        worker(1, environment=redact({"A": "2", "NCCL_DEBUG": "WARN", "B": "x"})),
    ]
    found = compare_environments("tp2", ("legacy", "v2"), left, right)
    assert [(d.name, d.ranks) for d in found] == [("A", [0, 1]), ("B", [1]), ("NCCL_DEBUG", [1])]
    assert (found[2].reference_value, found[2].candidate_value) == ("INFO", "WARN")
    assert found[1].reference_value is None
    assert found[0].reference_value != found[0].candidate_value
    assert compare_environments("tp2", ("a", "b"), TWO, right) == [], "not recorded: not compared"


def test_what_engines_differ_in_is_listed() -> None:
    left, right = synthetic_capture(), synthetic_capture()
    assert right.engine is not None
    right.engine.vllm, right.engine.python = "0.33.0", "3.13.1"
    right.header.model = "/elsewhere/synthetic"
    found = engine_differences(
        "tp2", ("legacy", "v2"), (left.header, left.engine), (right.header, right.engine)
    )
    assert [(d.name, d.candidate_value, d.decides_outputs) for d in found] == [
        ("vllm", "0.33.0", True),
        ("python", "3.13.1", False),
    ]


def test_workers_can_redact_without_loading_more() -> None:
    script = (
        "import sys; from vllm_ray_compat.parity.redaction import redact; "
        "sys.exit(bool({'pydantic', 'typer', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
