"""The plugin in real vLLM processes: which class ``Executor.get_class`` returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_ray_compat.names import FLAG_NAME

#: vLLM's own classes, and the subclasses of them with their known defects repaired.
VLLM_LEGACY = "vllm.v1.executor.ray_executor:RayDistributedExecutor"
VLLM_V2 = "vllm.v1.executor.ray_executor_v2:RayExecutorV2"
LEGACY = "vllm_ray_compat.executors.repaired:RayDistributedExecutor"
V2 = "vllm_ray_compat.executors.repaired:RayExecutorV2"
MP = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tiny: Path) -> Iterator[Ask]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("route_cases.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def go(backend: str = "ray", flag: str | None = None, **case: Any) -> dict[str, Any]:
        environ = {**case.pop("environ", {}), **({} if flag is None else {FLAG_NAME: flag})}
        case = {"model": str(tiny), "backend": backend, "environ": environ, **case}
        process.stdin.write(json.dumps(case) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        for line in process.stdout:  # type: ignore[union-attr]
            if line.startswith("ANSWER "):
                answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return answer
        raise AssertionError("the process that hosts the cases died")

    with process:  # closes the pipes and waits
        yield go
        process.stdin.close()


def test_unset_is_v2(ask: Ask) -> None:
    answer = ask()
    assert answer["executor"] == V2
    assert answer["backend"] == "ray", "the literal stays, or vLLM's own tests of it would fail"
    assert answer["warnings"] == []


def test_off_is_legacy_with_the_deprecation_warning(ask: Ask) -> None:
    answer = ask(flag="0")
    assert answer["executor"] == LEGACY
    ((category, text, filename),) = answer["warnings"]
    assert category == "LegacyExecutorRemovedInVllm033Warning"
    assert "removed in vLLM 0.33.0" in text
    assert filename.endswith("route_cases.py"), "it points at the user's line"
    assert any(
        line.startswith("WARNING LegacyExecutorRemovedInVllm033Warning") for line in answer["log"]
    )


def test_on_is_v2(ask: Ask) -> None:
    answer = ask(flag="1")
    assert (answer["executor"], answer["warnings"]) == (V2, [])


@pytest.mark.parametrize(("flag", "executor"), [("0", VLLM_LEGACY), ("1", VLLM_V2)])
def test_without_repairs_it_is_vllms_own_class(ask: Ask, flag: str, executor: str) -> None:
    answer = ask(flag=flag, environ={"RAYCOMPAT_REPAIRS": "none"})
    assert answer["executor"] == executor
    assert not any("repaired" in line for line in answer["log"])


@pytest.mark.parametrize("raw", ["true", "", "yes", "2"])
def test_invalid_is_our_error_for_ray(ask: Ask, raw: str) -> None:
    answer = ask(flag=raw)
    assert answer["error"].startswith(
        f"InvalidFlagError: {FLAG_NAME} has the invalid value {raw!r}"
    )
    assert "invalid literal for int" not in answer["error"]


@pytest.mark.parametrize("raw", ["true", "", "0", "1"])
def test_mp_comes_to_no_harm(ask: Ask, raw: str) -> None:
    answer = ask("mp", flag=raw)
    assert (answer["executor"], answer["warnings"]) == (MP, [])


def test_without_us_an_invalid_flag_harms_even_mp(ask: Ask) -> None:
    """What vLLM 0.32.0 does alone, and the reason for the test above."""
    answer = ask("mp", flag="true", environ={"RAYCOMPAT_DISABLE": "1"})
    assert answer["error"].startswith("ValueError: invalid literal for int()")


def test_white_space_is_normalised(ask: Ask) -> None:
    assert ask(flag=" 0 ")["executor"] == LEGACY


@pytest.mark.parametrize(
    ("flag", "executor"), [(None, VLLM_V2), ("0", VLLM_LEGACY), ("1", VLLM_V2)]
)
def test_disabled_is_vllms_own_behaviour(ask: Ask, flag: str | None, executor: str) -> None:
    answer = ask(flag=flag, environ={"RAYCOMPAT_DISABLE": "1"})
    assert answer["executor"] == executor
    assert (answer["warnings"], answer["log"]) == ([], [])


def test_disabled_leaves_even_the_bare_error(ask: Ask) -> None:
    answer = ask(flag="true", environ={"RAYCOMPAT_DISABLE": "1"})
    assert "invalid literal for int() with base 10: 'true'" in answer["error"]


def test_the_plugin_not_allowed_is_vllms_own_behaviour(ask: Ask) -> None:
    answer = ask(flag="0", environ={"VLLM_PLUGINS": "lora_filesystem_resolver"})
    assert (answer["executor"], answer["warnings"], answer["log"]) == (VLLM_LEGACY, [], [])


@pytest.mark.parametrize(
    ("times", "flag", "words"),
    [
        (1, None, ["backend v2", VLLM_V2, "provider vllm", "phase 2", "flag unset", "repaired: "]),
        (1, "0", ["backend legacy", VLLM_LEGACY, f"flag off (environment variable {FLAG_NAME})"]),
        (2, "1", ["backend v2", "flag on"]),
    ],
)
def test_one_info_line_an_engine(ask: Ask, times: int, flag: str | None, words: list[str]) -> None:
    info = [line for line in ask(flag=flag, times=times)["log"] if line.startswith("INFO")]
    assert len(info) == times
    for word in words:
        assert word in info[0]


def test_the_warning_comes_once_a_process(ask: Ask) -> None:
    assert len(ask(flag="0", times=2)["warnings"]) == 1


def test_a_rehearsed_phase(ask: Ask) -> None:
    answer = ask(flag="0", environ={"RAYCOMPAT_PHASE": "3"})
    assert answer["executor"] == V2
    assert answer["warnings"][0][0] == "FlagIgnoredSinceVllm033Warning"
    answer = ask(flag="0", environ={"RAYCOMPAT_PHASE": "3", "RAYCOMPAT_RESTORE_LEGACY": "1"})
    assert (answer["executor"], answer["warnings"]) == (LEGACY, [])


def test_strict(ask: Ask) -> None:
    answer = ask(flag="0", environ={"RAYCOMPAT_STRICT": "1"})
    assert answer["error"].startswith(
        "StrictModeError: RAYCOMPAT_STRICT=1 turns warnings into errors"
    )


def test_a_bad_setting_stops_ray_and_not_mp(ask: Ask) -> None:
    assert ask(environ={"RAYCOMPAT_PHASE": "9"})["error"].startswith("SettingsError")
    assert ask("mp", environ={"RAYCOMPAT_PHASE": "9"})["executor"] == MP


def test_the_flag_passes_vllms_validation_of_names(ask: Ask) -> None:
    assert ask(flag="1", validate=True)["executor"] == V2


def test_the_cpu_platform_is_inert_until_asked_for(tiny: Path) -> None:
    """In fresh processes: a platform is chosen once, when vLLM is imported."""
    script = (
        "from vllm.platforms import current_platform as p;"
        "print('PLATFORM', type(p).__module__, repr(p.ray_device_key))"
    )
    found = []
    for value in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "RAYCOMPAT_CPU": value},
        )
        found += [line for line in done.stdout.splitlines() if line.startswith("PLATFORM")]
    assert found == [
        "PLATFORM vllm.platforms.cpu ''",
        "PLATFORM vllm_ray_compat.platforms.cpu 'GPU'",
    ]
