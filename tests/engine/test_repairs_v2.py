"""Repairs of the RayExecutorV2 that vLLM ships: what happens with each, and without any.

Without the repairs the defect itself is asserted, so that a release which no longer has it fails
here and its range gets corrected. On the CPU, with real vLLM and Ray. ``REPAIR_CASES=store_port``
in the environment runs that case alone (a comma between several).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from packaging.version import Version

from tests.engine_fixtures import environment_of_cases, read_answers
from vllm_ray_compat.executors.repairs import BY_NAME
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.ownership import descendants, kill_all
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.vllm_api import find_vllm

HERE = Path(__file__).parent
RELEASE = Version(find_vllm().version)

pytestmark = pytest.mark.skipif(
    Backend.V2 not in find_vllm().ships, reason="this vLLM ships no RayExecutorV2 (0.20 and later)"
)

#: case -> the repair it is of.
CASES = {
    "dies_while_loading": "v2-start-up",
    "dies_before_the_barrier": "v2-start-up",
    "never_loads": "v2-start-up",
    "calls_and_end": "v2-shutdown",
    "oversized_group": "v2-oversized-group",
    "bundle_order": "v2-bundle-order",
    "store_port": "v2-store-port",
    "queue_port": "v2-queue-port",
    "actor_names": "v2-actor-names",
    "worker_import_environment": "worker-import-environment",
    "device_count": "device-count",
}
#: Not run without repairs: shown by another case.
ONLY_REPAIRED = {"never_loads"}

Answers = dict[tuple[str, str], dict[str, Any]]


#: For work on one repair: the others cost minutes.
CHOSEN = [case for case in os.environ.get("REPAIR_CASES", "").split(",") if case] or list(CASES)


def applies(case: str) -> bool:
    return case in CHOSEN and BY_NAME[CASES[case]].applies_to(Backend.V2, RELEASE)


def of(case: str, repairs: str, answers: Answers) -> dict[str, Any]:
    """Return what *case* found, or skip the test where the repair is of other releases."""
    repair = BY_NAME[CASES[case]]
    if case not in CHOSEN:
        pytest.skip(f"{case} is not in REPAIR_CASES")
    if not applies(case):
        pytest.skip(f"{repair.name} is for vLLM {repair.releases()}, this is {RELEASE}")
    return answers[case, repairs]


def has_own_shared_memory() -> list[str]:
    """Return the command that gives a node its own shared memory, as another machine has."""
    command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]
    with contextlib.suppress(OSError):
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return []


SEPARATE = has_own_shared_memory()


@pytest.fixture(scope="module")
def base_environment(base_environment: dict[str, str]) -> dict[str, str]:
    return environment_of_cases(base_environment, **{FLAG_NAME: "1"})


@pytest.fixture(scope="module")
def ray_environment(
    base_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A Ray cluster of two nodes, the second one as far away as this machine allows."""
    log = tmp_path_factory.mktemp("ray")
    with RayCluster(3, base_environment, log / "ray.log", fake_devices=True) as cluster:
        command = [
            *SEPARATE,
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--address", cluster.address, "--num-gpus=1", "--num-cpus=2"),
            *("--object-store-memory=100000000", "--disable-usage-stats"),
        ]
        with (log / "second.log").open("wb") as file:
            second = subprocess.Popen(
                command,
                env={**base_environment, **cluster.credentials},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)
        finally:
            kill_all([psutil.Process(second.pid), *descendants(second.pid)], grace_s=2)
            second.wait()


@pytest.fixture(scope="module")
def answers(
    tiny: Path,
    base_environment: dict[str, str],
    ray_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Answers:
    """What every case found, with all repairs and with none: a process each, until a case hangs."""
    found: Answers = {}
    for repairs in ("all", "none"):
        cases = [
            case
            for case in CASES
            if applies(case) and not (repairs == "none" and case in ONLY_REPAIRED)
        ]
        folder = tmp_path_factory.mktemp("cases")
        while waiting := [case for case in cases if (case, repairs) not in found]:
            log = folder / f"{repairs}-{waiting[0]}.log"
            with log.open("wb") as file:
                subprocess.run(
                    [sys.executable, str(HERE / "repair_cases_v2.py"), str(tiny), *waiting],
                    env={**base_environment, **ray_environment, "RAYCOMPAT_REPAIRS": repairs},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=1500,
                )
            text = log.read_text(errors="replace")
            print(f"==== {repairs}\n{text[-20000:]}")
            told = {(one["case"], repairs): one for one in read_answers(text)}
            assert told, text[-4000:]
            found |= told
    return found


def is_clean(found: dict[str, Any]) -> bool:
    return not found["groups"] and not found["alive"] and not found["segments"] and found["free"]


@pytest.mark.parametrize("case", ["dies_while_loading", "dies_before_the_barrier"])
def test_a_worker_that_dies_at_the_start(answers: Answers, case: str) -> None:
    found = of(case, "all", answers)
    assert "rank 1 died" in found["outcome"]
    assert is_clean(found)


def test_without_repair_a_failed_start_leaves_workers_and_devices(answers: Answers) -> None:
    found = of("dies_while_loading", "none", answers)
    assert found["outcome"] not in ("ready", "hangs")
    assert found["groups"]
    assert found["alive"] == [0]
    assert not found["free"]


def test_without_repair_a_death_before_the_barrier_hangs_the_start(answers: Answers) -> None:
    found = of("dies_before_the_barrier", "none", answers)
    assert found["outcome"] == "hangs"
    assert found["groups"]


def test_a_start_has_a_deadline(answers: Answers) -> None:
    found = of("never_loads", "all", answers)
    assert "did not finish within 20 s" in found["outcome"]
    assert is_clean(found)


def test_a_clean_end_gives_everything_back(answers: Answers) -> None:
    assert is_clean(of("calls_and_end", "all", answers))
    without = of("calls_and_end", "none", answers)
    # On 0.20 the end itself never comes back: the queues' ZeroMQ context waits for its sockets.
    assert without["outcome"] == "hangs" or (without["groups"] and not without["free"])


def test_answers_belong_to_their_calls(answers: Answers) -> None:
    found = of("calls_and_end", "all", answers)
    assert "raised on purpose" in found["failed"]
    assert found["after_failed"] == ["first", "first"]
    assert found["future"] == ["second", "second"]
    assert "TimeoutError" in found["late"]
    assert found["after_late"] == ["third", "third"]
    assert found["one"] == "fourth"
    assert "Error" in found["unsendable"]
    assert found["last"] == ["fifth", "fifth"]
    without = of("calls_and_end", "none", answers)
    assert "raised on purpose" in without["failed"]
    assert without["after_failed"] != ["first", "first"]


def test_a_group_larger_than_the_world(answers: Answers) -> None:
    found = of("oversized_group", "all", answers)
    assert found["outcome"] == "ready"
    assert found["health"] == [None, None]
    assert of("oversized_group", "none", answers)["outcome"] == "hangs"


def test_bundles_that_do_not_begin_on_the_drivers_node(answers: Answers) -> None:
    found = of("bundle_order", "all", answers)
    assert found["outcome"] == "ready"
    assert found["on_this_node"] == [1]
    assert found["by_shared_memory"] == [1]
    assert found["health"] == [None, None]


def test_without_repair_the_other_node_looks_for_our_shared_memory(answers: Answers) -> None:
    found = of("bundle_order", "none", answers)
    assert found["on_this_node"] == [1]
    assert found["by_shared_memory"] == [0]
    if SEPARATE:  # else the two nodes share it, and both ways work on this machine
        assert found["outcome"] != "ready" or found["health"] != [None, None]


def test_the_stores_port_is_taken_by_somebody_else(answers: Answers) -> None:
    found = of("store_port", "all", answers)
    assert found["outcome"] == "ready"
    assert len(set(found["used"])) == 1
    assert not found["used"][0].endswith(f":{found['taken']}")
    without = of("store_port", "none", answers)
    assert "EADDRINUSE" in without["outcome"]
    if "first_choice" in without and os.geteuid() == 0:
        assert without["first_choice"] == 100, "the same for every engine on this host"


def test_a_queues_port_is_taken_by_somebody_else(answers: Answers) -> None:
    found = of("queue_port", "all", answers)
    assert found["outcome"] == "ready"
    assert found["health"] == [None, None]
    assert "Address already in use" in of("queue_port", "none", answers)["outcome"]


def test_names_of_data_parallel_engines(answers: Answers) -> None:
    assert of("actor_names", "all", answers)["outcomes"] == ["ready", "ready"]
    first, second = of("actor_names", "none", answers)["outcomes"]
    assert first == "ready"
    assert "already taken" in second


def test_the_variable_that_is_read_at_import(answers: Answers) -> None:
    """On the CPU nothing that reads it is imported early; asked is whether it is there by then."""
    found = of("worker_import_environment", "all", answers)
    assert found["outcome"] == "ready"
    assert found["v2"] == [True]
    assert found["legacy"] == "1"
    without = of("worker_import_environment", "none", answers)
    assert without["outcome"] == "ready"
    assert without["v2"] == [False]
    assert without["legacy"] is None


def test_devices_of_a_ray_that_vllm_starts(answers: Answers) -> None:
    """No ROCm here: the platform says it is, and Ray is not really started."""
    found = of("device_count", "all", answers)
    assert found["num_gpus"] == [8, 8]
    assert all("EnoughError" in outcome for outcome in found["outcomes"])
    assert of("device_count", "none", answers)["num_gpus"] == [2, 2]
