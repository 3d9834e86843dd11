"""vLLM inside Ray Serve: the shapes that work, over HTTP, and the one that cannot.

``docs/serve.md`` describes them. ``PLACEMENT=full`` in the environment runs all of them, without
it one engine start for each of the shapes that matter most; ``PLACEMENT=llm_v2_tp2pp1`` runs that
case alone (a comma between several).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine import placing

from .conftest import free_port

ON_RAY = ("v2", "legacy")
#: The Ray actors that host workers, and vLLM's own name for a process of ``mp``.
WORKERS = {"v2": "RayWorkerProc", "legacy": "RayWorkerWrapper", "mp": "process"}
NOTHING = {"replicas": 0, "workers": 0, "groups": 0, "devices": 0}
ONE_ENGINE = {"workers": 2, "groups": 1, "devices": 2}

QUICK = ["group_v2_tp2pp1", "group_legacy_tp2pp1", "holds_v2", "holds_legacy", "mp_tp2pp1"]
SERVED = [
    *(f"group_{backend}_{topology}" for backend in ON_RAY for topology in ("tp2pp1", "tp1pp2")),
    *("mp_tp2pp1", "mp_tp1pp2"),
]
LLM = [f"llm_{backend}_{topology}" for backend in ON_RAY for topology in ("tp2pp1", "tp1pp2")]
HOLDS = [f"holds_{backend}" for backend in ON_RAY]
BUNDLE = [f"bundle_{backend}" for backend in ON_RAY]
REPLICAS = [f"replicas_{backend}" for backend in ON_RAY]
KILLED = [f"killed_{backend}" for backend in ON_RAY]
INDICES = [f"indices_{backend}" for backend in ON_RAY]
CASES = placing.chosen(QUICK, [*SERVED, *LLM, *HOLDS, *BUNDLE, *REPLICAS, *KILLED, *INDICES])

#: Seconds for one case; on two busy cores an engine takes two minutes to start.
CASE_S = 240


def of(cases: list[str]) -> Any:
    return placing.parametrized(cases, CASES)


@pytest.fixture(scope="module")
def devices() -> int:
    return 4


@pytest.fixture(scope="module")
def base_environment(base_environment: dict[str, str]) -> dict[str, str]:
    return placing.with_path(base_environment)


@pytest.fixture(scope="module")
def answers(
    base_environment: dict[str, str], ray_environment: dict[str, str], tiny: Path
) -> dict[str, dict[str, Any]]:
    """One Ray cluster and one Serve for all cases, one after the other."""
    found, output = placing.run(
        "serve_cases.py",
        [str(tiny), str(free_port()), *CASES],
        {**base_environment, **ray_environment},
        CASE_S * len(CASES),
    )
    print(output[-20_000:])  # shown where a test fails
    return found


def found_of(case: str, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    assert case in answers, f"the case {case} did not end; those that did: {list(answers)}"
    return answers[case]


def nothing_is_left(found: dict[str, Any], *, shared_memory: bool = True) -> None:
    """Fail if something is; the shared memory of processes that were killed is (docs/serve.md)."""
    assert found["left"] == NOTHING
    assert found["processes_left"] == []
    if shared_memory:
        assert found["shared_left"] == 0


def are_right(tokens: list[list[int]], environ: dict[str, str], model: Path) -> None:
    assert tokens == placing.offline(model, tuple(environ.items()))


@of(SERVED)
def test_a_replica_answers_over_http(
    case: str, answers: dict[str, dict[str, Any]], base_environment: dict[str, str], tiny: Path
) -> None:
    found = found_of(case, answers)
    backend = case.split("_")[-2]
    are_right(found["tokens"], base_environment, tiny)
    assert found["ranks"] == [0, 1]
    assert found["kinds"] == [WORKERS[backend]]
    if backend == "mp":
        # The replica holds the devices, and Ray sees no workers.
        assert found["held"] == {"replicas": 1, "workers": 0, "groups": 0, "devices": 2}
    else:
        assert found["held"] == {"replicas": 1, **ONE_ENGINE}
        assert len(found["groups"]) == 1
        assert found["groups"] != ["None"]
        assert len(set(found["devices"])) == 2
    nothing_is_left(found)


@of(HOLDS)
def test_a_replica_that_holds_the_devices_is_refused(
    case: str, answers: dict[str, dict[str, Any]]
) -> None:
    found = found_of(case, answers)
    for words in (
        "DevicesHeldByActorError: This engine runs in a Ray actor that holds 3 GPU itself",
        "reserves 2 GPU more, and of the cluster's 4 are free: 1. It would wait for ever.",
        "@serve.deployment(**vllm_ray_compat.serve.placement_options(tensor_parallel_size=2))",
        "distributed_executor_backend='mp'",
    ):
        assert words in found["message"]
    assert found["start_s"] < 120, "most of it is the import of vLLM"
    nothing_is_left(found)


@of(BUNDLE)
def test_a_replica_that_holds_the_device_of_a_worker_is_refused(
    case: str, answers: dict[str, dict[str, Any]]
) -> None:
    found = found_of(case, answers)
    assert "holds 1 GPU itself. Its placement group has 2 bundles with GPU" in found["message"]
    assert "placement_options(tensor_parallel_size=2)" in found["message"]
    nothing_is_left(found)


@of(LLM)
def test_serve_llm_answers_over_http(
    case: str, answers: dict[str, dict[str, Any]], base_environment: dict[str, str], tiny: Path
) -> None:
    found = found_of(case, answers)
    backend = case.split("_")[1]
    are_right(found["tokens"], base_environment, tiny)
    assert found["kinds"] == [WORKERS[backend]] * 2
    assert {name: found["held"][name] for name in ONE_ENGINE} == ONE_ENGINE
    nothing_is_left(found, shared_memory=False)


@of(REPLICAS)
def test_two_replicas_on_one_node_and_one_less(
    case: str, answers: dict[str, dict[str, Any]], base_environment: dict[str, str], tiny: Path
) -> None:
    found = found_of(case, answers)
    are_right(found["tokens"], base_environment, tiny)
    assert found["held_by_two"] == {"replicas": 2, "workers": 4, "groups": 2, "devices": 4}
    first, second = found["groups"]
    assert len(first) == len(second) == 1
    assert first != second
    assert len(set(found["devices"])) == 4
    assert found["held_by_one"] == {"replicas": 1, **ONE_ENGINE}
    assert found["kept_is_one_of_them"], "it was not restarted"
    assert found["still_there"] == []
    assert found["tokens_after"] == found["tokens"]
    nothing_is_left(found)


@of(KILLED)
def test_nothing_stays_of_a_replica_that_was_killed(
    case: str, answers: dict[str, dict[str, Any]], base_environment: dict[str, str], tiny: Path
) -> None:
    found = found_of(case, answers)
    assert found["still_there"] == []
    assert found["held_by_the_next"] == {"replicas": 1, **ONE_ENGINE}
    assert found["is_another"]
    are_right(found["tokens"], base_environment, tiny)
    nothing_is_left(found, shared_memory=False)


@of(INDICES)
def test_two_engines_in_one_group_by_bundle_indices(
    case: str, answers: dict[str, dict[str, Any]], base_environment: dict[str, str], tiny: Path
) -> None:
    found = found_of(case, answers)
    first, second = found["engines"]
    assert len({*first["devices"], *second["devices"]}) == 4
    for engine in (first, second):
        assert engine["groups"] == [found["group"]]
        are_right(engine["tokens"], base_environment, tiny)
    assert found["held"] == {"replicas": 0, "workers": 4, "groups": 1, "devices": 4}
    assert found["left"] == NOTHING
