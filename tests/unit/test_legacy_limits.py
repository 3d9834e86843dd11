"""What a Compiled Graph executor refuses, by the configuration alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_ray_compat.executors import legacy_limits


def config(**changes: Any) -> Any:
    given = {"stages": 1, "world": 2, "context": 1, "runner": "generate", "v2": False, **changes}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=given["stages"],
            prefill_context_parallel_size=given["context"],
            world_size=given["world"],
        ),
        model_config=SimpleNamespace(runner_type=given["runner"]),
        use_v2_model_runner=given["v2"],
        kv_transfer_config=given.get("kv"),
        ec_transfer_config=given.get("ec"),
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"v2": True, "stages": 2}, "several pipeline stages"),
        ({"v2": True, "runner": "pooling"}, "a pooling model"),
        ({"context": 2}, "prefill context parallelism"),
        ({"kv": object(), "stages": 2}, "only the last stage reports"),
        ({"ec": object()}, "an EC connector"),
    ],
)
def test_what_would_go_wrong_is_named(changes: dict[str, Any], words: str) -> None:
    (reason,) = legacy_limits.reasons(config(**changes))
    assert words in reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stages": 2},
        {"v2": True},
        {"runner": "pooling"},
        {"kv": object()},
        {"ec": object(), "world": 1},
    ],
)
def test_what_works_is_left_alone(changes: dict[str, Any]) -> None:
    assert legacy_limits.reasons(config(**changes)) == []


def test_several_reasons_are_one_sentence_with_the_way_out() -> None:
    found = legacy_limits.reasons(config(v2=True, stages=2, kv=object()))
    text = legacy_limits.refusal(found)
    assert "; " in text
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in text
    assert text.endswith("set VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1.")
