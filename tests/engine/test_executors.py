"""This package's own executors in real engines: calls, ends, and workers that die.

Which one runs is what the installed vLLM makes of it: V2 where it has none, else legacy. vLLM's
own RayExecutorV2 and legacy executor fail several of these (facts V2-3, V2-4, V2-6, L-3, L-8).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import COMPAT_EXECUTORS, Backend
from vllm_ray_compat.vllm_api import find_vllm

HERE = Path(__file__).parent
SHIPPED = find_vllm().ships
OWN = Backend.LEGACY if Backend.V2 in SHIPPED else Backend.V2

#: Seconds; the design's budgets (section 9), and half a second for a machine of two cores.
IDLE_S, BUSY_S, SHUTDOWN_S = 2.0, 1.5, 1.5


@pytest.fixture(scope="module")
def base_environment(base_environment: dict[str, str]) -> dict[str, str]:
    """Workers import this folder's module, so Ray must be started with it on the path."""
    return {**base_environment, "PYTHONPATH": str(HERE), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@pytest.fixture(scope="module")
def answers(
    tiny: Path, base_environment: dict[str, str], ray_environment: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """What every case found, from one process."""
    environ = {**base_environment, **ray_environment}
    environ[FLAG_NAME] = "1" if OWN is Backend.V2 else "0"
    executor = "ray"
    if OWN in SHIPPED:
        executor = COMPAT_EXECUTORS[OWN]
    elif OWN is Backend.LEGACY:
        environ["RAYCOMPAT_RESTORE_LEGACY"] = "1"
    cases = ["calls", "unused", "killed_idle", "killed_busy", "bad_weights", "dies_at_start"]
    done = subprocess.run(
        [sys.executable, str(HERE / "executor_cases.py"), str(tiny), executor, *cases],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=590,
    )
    found = [
        json.loads(line.partition("ANSWER ")[2])
        for line in done.stdout.splitlines()
        if "ANSWER " in line
    ]
    print(done.stdout[-20000:])
    assert [one["case"] for one in found] == cases, done.stdout[-4000:]
    return {one["case"]: one for one in found}


def assert_nothing_left(found: dict[str, Any]) -> None:
    assert found["groups"] == []
    assert found["devices_free"] == 2
    assert found["alive"] == []
    assert found["segments"] == []


def test_it_is_the_one_of_this_package(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["calls"]["executor"] == COMPAT_EXECUTORS[OWN]


def test_calls(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["calls"]
    assert found["ranks"] == [0, 1]
    assert found["arguments"] == [3, 3]
    assert found["by_name"] == [None, None]
    assert found["future"] == [4, 4]
    assert found["one_rank"] == 1
    assert found["after_error"] == [4, 4]
    assert found["health"] == ""
    assert found["tokens"] == 8


def test_errors_of_workers_arrive(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["calls"]
    for name in ("error", "future_error"):
        assert "raised on purpose" in found[name]
        if OWN is Backend.LEGACY:  # the message queue carries texts only
            assert "ValueError" in found[name]
    assert "no_such_method" in found["unknown_method"]


def test_a_call_times_out(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["calls"]
    assert "TimeoutError" in found["timeout"]
    assert 0.4 < found["timeout_s"] < 1.5


@pytest.mark.parametrize("case", ["calls", "unused"])
def test_a_clean_end(answers: dict[str, dict[str, Any]], case: str) -> None:
    found = answers[case]
    assert found["shutdown_s"] <= SHUTDOWN_S
    assert found.get("again_s", 0) < 0.1
    assert found.get("callback_after_shutdown") is None, "a shutdown is no failure"
    assert_nothing_left(found)


@pytest.mark.parametrize(("case", "limit_s"), [("killed_idle", IDLE_S), ("killed_busy", BUSY_S)])
def test_a_dead_worker_is_noticed(
    answers: dict[str, dict[str, Any]], case: str, limit_s: float
) -> None:
    found = answers[case]
    assert found["callback_s"] is not None
    assert found["callback_s"] <= limit_s
    assert found.get("error_s", 0) <= limit_s
    assert found.get("error", found.get("next")), "the caller gets an error, not an answer"
    assert found["shutdown_s"] < 0.7, "the executor has already shut down"
    assert_nothing_left(found)


def test_a_model_that_does_not_load(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["bad_weights"]
    assert "Loading the model" in found["error"]
    assert_nothing_left(found)


def test_a_worker_that_dies_at_the_start(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["dies_at_start"]
    assert "rank 1" in found["error"]
    assert_nothing_left(found)
