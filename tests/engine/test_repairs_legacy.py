"""Repairs of vLLM's legacy executor, each seen to be needed: the same cases with and without."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.engine_fixtures import environment_of_cases, read_answers
from vllm_ray_compat.executors import repairs
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import REPAIRED_EXECUTORS, VLLM_EXECUTORS, Backend
from vllm_ray_compat.vllm_api import find_vllm

HERE = Path(__file__).parent
VLLM = find_vllm()
Answers = dict[str, dict[str, Any]]

if Backend.LEGACY not in VLLM.ships:
    pytest.skip(f"vLLM {VLLM.version} ships no legacy executor to repair", allow_module_level=True)


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test where the installed vLLM does not have the defect."""
    repair = repairs.BY_NAME[name]
    return pytest.mark.skipif(
        not repair.applies_to(Backend.LEGACY, Version(VLLM.version)),
        reason=f"{name} is for vLLM {repair.releases()}, not {VLLM.version}",
    )


@pytest.fixture(scope="module")
def base_environment(base_environment: dict[str, str]) -> dict[str, str]:
    return environment_of_cases(
        base_environment,
        # How long a stalled step takes; else five minutes.
        **{FLAG_NAME: "0", "RAY_CGRAPH_get_timeout": "30"},
    )


Run = Callable[[str, list[str]], Answers]


@pytest.fixture(scope="module")
def run(
    tiny: Path,
    base_environment: dict[str, str],
    ray_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Return a function that returns what every case found, from one process."""

    def go(in_force: str, cases: list[str]) -> Answers:
        log = tmp_path_factory.mktemp(f"repairs-{in_force}") / "log"
        with log.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, str(HERE / "repair_cases_legacy.py"), str(tiny), *cases],
                env={**base_environment, **ray_environment, "RAYCOMPAT_REPAIRS": in_force},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=590,
            )
        text = log.read_text(encoding="utf-8", errors="replace")
        found = read_answers(text)
        print(text[-20000:])
        assert [one["case"] for one in found] == cases, text[-4000:]
        return {one["case"]: one for one in found}

    return go


@pytest.fixture(scope="module")
def repaired(run: Run) -> Answers:
    return run("all", ["refusals", "parts", "given_group", "failed_start", "unused", "killed"])


@pytest.fixture(scope="module")
def shipped(run: Run) -> Answers:
    return run("none", ["refusals", "parts", "failed_start", "unused", "killed"])


def assert_nothing_left(found: dict[str, Any]) -> None:
    assert found["groups"] == []
    assert found.get("devices_free", 2) == 2
    assert found.get("alive", []) == []


def test_these_are_the_executors_meant(repaired: Answers, shipped: Answers) -> None:
    assert repaired["parts"]["executor"] == REPAIRED_EXECUTORS[Backend.LEGACY]
    assert shipped["parts"]["executor"] == VLLM_EXECUTORS[Backend.LEGACY]
    names = [r.name for r in repairs.in_force(Backend.LEGACY, VLLM.version, None)]
    assert repaired["parts"]["repairs"] == names


def test_calls_health_and_steps(repaired: Answers) -> None:
    assert repaired["parts"]["call"] == [[0, 0], [1, 1]]
    assert repaired["parts"]["future"] == [[0, 0], [1, 1]]
    assert repaired["parts"]["health"] == ""
    assert repaired["parts"]["steps"] == ""
    assert repaired["parts"]["own_memory"] == [True] * 25


@needs("legacy-shutdown")
@pytest.mark.parametrize("case", ["parts", "failed_start", "unused", "killed"])
def test_every_end_leaves_nothing(repaired: Answers, case: str) -> None:
    assert_nothing_left(repaired[case])


@needs("legacy-shutdown")
def test_without_workers_or_group_stay(shipped: Answers) -> None:
    assert shipped["unused"]["alive"], "upstream now ends workers that never ran a step"
    for case in ("parts", "failed_start", "unused"):
        assert shipped[case]["groups"], f"upstream now removes its placement group ({case})"


@needs("legacy-shutdown")
def test_a_failed_start_says_why(repaired: Answers, shipped: Answers) -> None:
    for answers in (repaired, shipped):
        assert "cannot be loaded" in answers["failed_start"]["error"]


@needs("legacy-shutdown")
def test_shutdown_twice_and_the_configuration_again(repaired: Answers) -> None:
    assert repaired["given_group"]["again"] == ""
    assert repaired["parts"]["group_forgotten"]


@needs("legacy-shutdown")
def test_a_group_that_was_given_stays(repaired: Answers) -> None:
    assert len(repaired["given_group"]["groups"]) == 1
    assert repaired["given_group"]["kept"]
    assert repaired["given_group"]["devices_free"] == 2


@needs("legacy-monitor")
def test_a_dead_worker_is_noticed(repaired: Answers) -> None:
    found = repaired["killed"]
    assert found["callback_s"] is not None
    assert found["callbacks"] == 1
    assert "rank 1 died" in found["health"]
    assert "rank 1 died" in found["next"]
    assert found["shutdown"] == ""


@needs("legacy-monitor")
def test_without_it_is_never_noticed(shipped: Answers) -> None:
    assert shipped["killed"]["callback_s"] is None
    assert shipped["killed"]["health"] == "", "upstream now asks its workers"


REFUSALS = {
    "legacy-model-runner": "Model Runner V2 with several pipeline stages",
    "legacy-kv-connector": "only the last stage reports",
    "legacy-context-parallel": "prefill context parallelism",
    "legacy-ec-connector": "an EC connector",
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in REFUSALS])
def test_a_refusal_comes_before_anything_starts(
    repaired: Answers, shipped: Answers, name: str
) -> None:
    text = repaired["refusals"][name]
    assert text.startswith("RepairRefusalError: The legacy Ray executor cannot serve")
    assert REFUSALS[name] in text
    assert f"{FLAG_NAME}=1" in text, "the way out"
    assert f"RAYCOMPAT_REPAIRS=all,-{name}" in text, "for those who know better"
    assert not repaired["refusals"]["ray"]
    assert "Ray was reached" in shipped["refusals"][name]


@needs("legacy-model-runner")
def test_pooling_with_model_runner_v2_is_refused(repaired: Answers, shipped: Answers) -> None:
    assert "a pooling model" in repaired["refusals"]["pooling"]
    assert "Ray was reached" in shipped["refusals"]["pooling"]


def test_other_configurations_are_not_refused(repaired: Answers) -> None:
    assert "Ray was reached" in repaired["refusals"]["accepted"]


@needs("legacy-future")
def test_without_the_future_of_a_call_is_an_error(shipped: Answers) -> None:
    assert "AttributeError" in shipped["parts"]["future_error"]


@needs("legacy-draft-tokens")
def test_drafts_come_from_the_last_stage(repaired: Answers, shipped: Answers) -> None:
    assert repaired["parts"]["drafts"] == 1
    assert shipped["parts"]["drafts"] == 0


@needs("legacy-ranks")
def test_both_ranks_are_adjusted(repaired: Answers, shipped: Answers) -> None:
    assert repaired["parts"]["adjusted"] == [[7, 7], [8, 8]]
    assert shipped["parts"]["adjusted"] == [[7, 0], [8, 1]]


@needs("legacy-graph-device")
def test_the_graph_knows_its_device(repaired: Answers, shipped: Answers) -> None:
    """The workers look like CUDA workers to Ray: a device, and no CUDA_VISIBLE_DEVICES."""
    assert repaired["parts"]["steps"] == ""
    assert "CUDA_VISIBLE_DEVICES set incorrectly" in shipped["parts"]["steps"]


@needs("legacy-detach")
def test_steps_do_not_stall(repaired: Answers, shipped: Answers) -> None:
    """The results of all steps are kept, as requests with logprobs do."""
    assert repaired["parts"]["steps"] == ""
    assert "Timeout" in shipped["parts"]["steps"]
    assert shipped["parts"]["own_memory"][0] is False
