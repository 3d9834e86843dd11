"""Placement groups of every kind, given to both backends: vLLM's own, repaired, or this package's.

One Ray cluster with four devices that do not exist, one process a backend. What is refused has to
be refused before any actor starts: Ray is asked which actors there ever were.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixtures import environment_of_cases, read_answers
from vllm_ray_compat.flag import read_flag
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import select
from vllm_ray_compat.settings import read_settings
from vllm_ray_compat.vllm_api import find_vllm

HERE = Path(__file__).parent

#: Seconds in which a start has to fail (issue 5).
SOON_S = 30.0

Answers = dict[tuple[Backend, str], dict[str, Any]]


@pytest.fixture(scope="module")
def devices() -> int:
    return 4


@pytest.fixture(scope="module")
def base_environment(base_environment: dict[str, str]) -> dict[str, str]:
    return environment_of_cases(base_environment)


def flags(backend: Backend) -> dict[str, str]:
    """Return what selects *backend*, on every release."""
    return {FLAG_NAME: "1" if backend is Backend.V2 else "0", "RAYCOMPAT_RESTORE_LEGACY": "1"}


@pytest.fixture(scope="module")
def answers(
    tiny: Path,
    base_environment: dict[str, str],
    ray_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Answers:
    found: Answers = {}
    folder = tmp_path_factory.mktemp("placement")
    for backend in Backend:
        log = folder / f"{backend.value}.log"
        cases = ["mistakes", "unsatisfied", "dead_node", "starts", "inside"]
        with log.open("wb") as file:
            subprocess.run(
                [sys.executable, str(HERE / "placement_cases.py"), str(tiny), *cases],
                env={**base_environment, **ray_environment, **flags(backend)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=900,
            )
        text = log.read_text(errors="replace")
        print(f"==== {backend.value}\n{text[-30000:]}")
        found |= {(backend, one["case"]): one for one in read_answers(text)}
        assert (backend, "inside") in found, text[-4000:]
    return found


both = pytest.mark.parametrize("backend", Backend, ids=lambda backend: backend.value)


@both
@pytest.mark.parametrize(
    ("case", "bundles"), [("listed", [3, 0]), ("extra", [0, 2])], ids=["listed", "extra"]
)
def test_a_group_that_the_client_gives(
    answers: Answers, backend: Backend, case: str, bundles: list[int]
) -> None:
    """On one node the list is the rank order with both: legacy sorts by node alone."""
    found = answers[backend, "starts"][case]
    assert found["outcome"] == "ready"
    assert found["bundles"] == bundles
    assert found["groups"] == ["CREATED"], "the client's own stays"
    assert not found["alive"]
    assert not found["segments"]
    assert not answers[backend, "starts"]["held"]


@both
def test_the_group_that_the_engine_runs_in(answers: Answers, backend: Backend) -> None:
    found = answers[backend, "inside"]
    assert found["bundles"] == [0, 2]
    assert not found["held"]


@both
def test_both_executors_ran(answers: Answers, backend: Backend) -> None:
    expected = select(flag=read_flag(flags(backend)), settings=read_settings(flags(backend))).loaded
    assert answers[backend, "starts"]["listed"]["kind"] == expected
    assert answers[backend, "inside"]["kind"] == expected


def is_refused(found: dict[str, Any]) -> bool:
    """Whether it failed soon, before an actor was started, and left nothing."""
    return (
        found["said"].startswith("PlacementError: ")
        and found["took_s"] < SOON_S
        and not found["actors"]
        and not found["groups"]
        and found["given_stays"]
    )


@both
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("few", "=0: it names 1 bundles, and there are 2 ranks"),
        ("many", "=0,2,3: it names 3 bundles"),
        ("twice", "=2,2: it names bundle 2 more than once"),
        ("words", "='0,two' is not a list of numbers"),
        ("nothing", "Not a number: ''"),
        ("beyond", "the placement group has no bundle 9, only 0 to 3"),
        ("negative", "Not a number: '-1'"),
        ("no_device", "bundle 1 reserves no device"),
        ("all_at_once", "names 3 bundles, and there are 2 ranks; name one bundle for each rank; it "
         "names bundle 9 more than once; each rank needs its own; the placement group has no bundle "
         "9, only 0 to 3; bundle 1 reserves no device."),
        ("no_list_and_no_group", "='x' is not a list of numbers"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_list_of_bundles(
    answers: Answers, backend: Backend, case: str, said: str
) -> None:
    found = answers[backend, "mistakes"][case]
    assert "VLLM_RAY_BUNDLE_INDICES" in found["said"]
    assert said in found["said"]
    assert is_refused(found), found


@both
def test_a_bundle_on_a_dead_node(answers: Answers, backend: Backend) -> None:
    found = answers[backend, "dead_node"]
    assert "bundle 1 is dead" in found["said"] or "bundle 1 is on node" in found["said"]
    assert is_refused(found), found


@both
@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("two_devices", "Bundle 0 of the placement group reserves more than one GPU"),
        ("too_few", "has 1 bundles with a GPU, and 2 ranks need one each"),
        ("removed", "that the client gave does not exist (any more)"),
    ],
)
def test_a_group_of_no_use(answers: Answers, backend: Backend, case: str, said: str) -> None:
    found = answers[backend, "mistakes"][case]
    assert said in found["said"]
    assert is_refused(found), found


@both
@pytest.mark.parametrize("case", ["made", "given"])
def test_devices_that_others_hold(answers: Answers, backend: Backend, case: str) -> None:
    found = answers[backend, "unsatisfied"][case]
    assert is_refused(found), found
    assert "is not ready after 2 s" in found["said"]
    assert "GPU 0 free of 4" in found["said"]
    assert "'the_other_job' (CREATED), made by job" in found["said"]
    assert "actor Hoarder 'hoarder'" in found["said"]
    assert not answers[backend, "unsatisfied"]["held"]["devices"]


@both
def test_more_devices_than_there_are(answers: Answers, backend: Backend) -> None:
    found = answers[backend, "unsatisfied"]["never"]
    assert is_refused(found), found
    assert "These nodes can never hold it: all nodes together have GPU 4" in found["said"]


@pytest.mark.skipif(
    Backend.LEGACY not in find_vllm().ships, reason="only vLLM's own legacy goes by VLLM_HOST_IP"
)
def test_an_address_that_is_none_of_the_cluster(answers: Answers) -> None:
    found = answers[Backend.LEGACY, "mistakes"]["host_ip"]
    assert "VLLM_HOST_IP=10.9.9.9 is wrong: no node of the Ray cluster has" in found["said"]
    assert is_refused(found), found
