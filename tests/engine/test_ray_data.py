"""Batch inference through ``ray.data.llm``: a dataset, and the answers of an offline engine.

``PLACEMENT=full`` runs both topologies with both backends, without it tensor parallelism with V2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine import placing

WORKERS = {"v2": "RayWorkerProc", "legacy": "RayWorkerWrapper"}
QUICK = ["data_v2_tp1pp2"]
FULL = [f"data_{backend}_{t}" for backend in WORKERS for t in ("tp2pp1", "tp1pp2")]
CASES = placing.chosen(QUICK, FULL)


@pytest.fixture(scope="module")
def base_environment(base_environment: dict[str, str]) -> dict[str, str]:
    return placing.with_path(base_environment)


@placing.parametrized(FULL, CASES)
def test_a_dataset_is_answered_as_by_an_offline_engine(
    case: str, base_environment: dict[str, str], ray_environment: dict[str, str], tiny: Path
) -> None:
    arguments = [str(tiny), "0", case]
    environ = {**base_environment, **ray_environment}
    answers, output = placing.run("data_cases.py", arguments, environ, 300)
    assert case in answers, output[-6000:]
    found: dict[str, Any] = answers[case]
    backend = case.split("_")[1]
    assert found["workers"] == [WORKERS[backend]]
    assert found["groups"] == [found["asked"]], "the one that was asked for; vLLM makes none"
    assert found["tokens"] == placing.offline(tiny, tuple(base_environment.items()))
    assert found["engines_left"] == 0, "workers end with the dataset"
    assert found["left"] == {"groups": [], "devices": 0}, "groups end with the driver"
