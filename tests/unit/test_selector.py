"""The decision table of the design, every cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_ray_compat.deprecations import (
    FlagIgnoredSinceVllm033Warning,
    LegacyExecutorRemovedInVllm033Warning,
    UnknownSettingWarning,
)
from vllm_ray_compat.errors import EXIT_DIFFERENCE
from vllm_ray_compat.flag import Flag, FlagValue, InvalidFlagError
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import StrictModeError, rehearse, select
from vllm_ray_compat.settings import Settings
from vllm_ray_compat.vllm_api import Installation

VLLM_LEGACY = "vllm.v1.executor.ray_executor:RayDistributedExecutor"
VLLM_V2 = "vllm.v1.executor.ray_executor_v2:RayExecutorV2"
COMPAT_LEGACY = "vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor"
COMPAT_V2 = "vllm_ray_compat.executors.ray_v2:RayExecutorV2"

UNSET = Flag()
OFF = Flag(FlagValue.OFF, "0", "test")
ON = Flag(FlagValue.ON, "1", "test")

#: One release of each phase.
IN_PHASE = {0: "0.19.1", 1: "0.20.2", 2: "0.32.0", 3: "0.33.0"}

CELLS = [
    # phase, flag, restore legacy, executor, warning, has a note
    (0, UNSET, False, VLLM_LEGACY, None, False),
    (0, OFF, False, VLLM_LEGACY, None, False),
    (0, ON, False, COMPAT_V2, None, False),
    (1, UNSET, False, VLLM_LEGACY, None, False),
    (1, OFF, False, VLLM_LEGACY, None, False),
    (1, ON, False, VLLM_V2, None, False),
    (2, UNSET, False, VLLM_V2, None, False),
    (2, OFF, False, VLLM_LEGACY, LegacyExecutorRemovedInVllm033Warning, False),
    (2, ON, False, VLLM_V2, None, False),
    (3, UNSET, False, VLLM_V2, None, False),
    (3, OFF, False, VLLM_V2, FlagIgnoredSinceVllm033Warning, False),
    (3, OFF, True, COMPAT_LEGACY, None, False),
    (3, ON, False, VLLM_V2, None, True),
    # RESTORE_LEGACY changes nothing anywhere else.
    (0, ON, True, COMPAT_V2, None, False),
    (1, OFF, True, VLLM_LEGACY, None, False),
    (2, UNSET, True, VLLM_V2, None, False),
    (2, OFF, True, VLLM_LEGACY, LegacyExecutorRemovedInVllm033Warning, False),
    (3, UNSET, True, VLLM_V2, None, False),
    (3, ON, True, VLLM_V2, None, True),
]


@pytest.mark.parametrize(("phase", "flag", "restore", "executor", "warning", "note"), CELLS)
def test_every_cell(
    phase: int,
    flag: Flag,
    restore: bool,
    executor: str,
    warning: type[Warning] | None,
    note: bool,
) -> None:
    decision = select(IN_PHASE[phase], flag=flag, settings=Settings(restore_legacy=restore))
    assert decision.executor == executor
    assert decision.phase == phase
    assert decision.backend.value == (
        "legacy" if "legacy" in executor.lower() or "RayDistributed" in executor else "v2"
    )
    assert decision.provider == executor.partition(".")[0]
    assert [type(w) for w in decision.warnings] == ([warning] if warning else [])
    assert bool(decision.notes) is note
    assert decision.reasons


@pytest.mark.parametrize(
    "warning_class", [LegacyExecutorRemovedInVllm033Warning, FlagIgnoredSinceVllm033Warning]
)
def test_warnings_name_the_removing_release(warning_class: type[Warning]) -> None:
    from vllm_ray_compat import schedule

    removed_in = schedule.removal(Backend.LEGACY)
    assert removed_in is not None
    assert f"Vllm{removed_in.major}{removed_in.minor}" in warning_class.__name__
    phase = 2 if warning_class is LegacyExecutorRemovedInVllm033Warning else 3
    (found,) = select(IN_PHASE[phase], flag=OFF, settings=Settings()).warnings
    assert str(removed_in) in str(found)
    assert "RAYCOMPAT_RESTORE_LEGACY=1" in str(found)


@pytest.mark.parametrize("phase", [2, 3])
def test_strict_makes_every_warning_an_error(phase: int) -> None:
    decision = select(IN_PHASE[phase], flag=OFF, settings=Settings(strict=True))
    with pytest.raises(StrictModeError) as caught:
        decision.enforce()
    assert str(decision.warnings[0]) in str(caught.value)
    assert caught.value.exit_code == EXIT_DIFFERENCE


def test_strict_leaves_a_note_alone() -> None:
    select(IN_PHASE[3], flag=ON, settings=Settings(strict=True)).enforce()


def test_without_strict_nothing_is_raised() -> None:
    select(IN_PHASE[3], flag=OFF, settings=Settings()).enforce()


@pytest.mark.parametrize(
    ("release", "phase", "flag", "executor"),
    [
        # The policy is rehearsed; the class is the one the release really has.
        ("0.30.0", 3, OFF, VLLM_V2),
        ("0.30.0", 0, UNSET, VLLM_LEGACY),
        ("0.30.0", 1, UNSET, VLLM_LEGACY),
        ("0.19.1", 2, UNSET, COMPAT_V2),
        ("0.33.0", 1, UNSET, COMPAT_LEGACY),
    ],
)
def test_a_rehearsed_phase_changes_the_policy_only(
    release: str, phase: int, flag: Flag, executor: str
) -> None:
    decision = select(release, flag=flag, settings=rehearse(Settings(), phase, "--phase"))
    assert decision.executor == executor
    assert decision.phase == phase
    assert decision.policy == "--phase"


def test_rehearsed_restore_names_a_class_that_exists() -> None:
    settings = rehearse(Settings(restore_legacy=True), 3, "--phase")
    assert select("0.30.0", flag=OFF, settings=settings).executor == VLLM_LEGACY


def test_a_newer_release_takes_the_last_row_and_says_so() -> None:
    decision = select("0.40.0", flag=UNSET, settings=Settings())
    assert decision.phase == 3
    assert any("newer than 0.33.0" in note for note in decision.notes)


def test_what_is_on_disk_decides_the_provider() -> None:
    nightly = Installation("0.33.0.dev1", Path("x"), "vllm", frozenset(Backend))
    decision = select(nightly, flag=OFF, settings=Settings(restore_legacy=True))
    assert decision.executor == VLLM_LEGACY
    assert any("what is on disk is used" in note for note in decision.notes)


def test_unknown_settings_are_warnings() -> None:
    decision = select("0.32.0", environ={"RAYCOMPAT_PHAES": "1"})
    (found,) = decision.warnings
    assert isinstance(found, UnknownSettingWarning)
    assert "Did you mean 'RAYCOMPAT_PHASE'?" in str(found)


def test_everything_is_read_from_the_environment_given() -> None:
    decision = select("0.32.0", environ={FLAG_NAME: "0", "RAYCOMPAT_PHASE": "3"})
    assert decision.executor == VLLM_V2
    assert decision.policy == "environment variable RAYCOMPAT_PHASE=3"


def test_an_invalid_flag_is_an_error_in_every_phase() -> None:
    for release in IN_PHASE.values():
        with pytest.raises(InvalidFlagError):
            select(release, environ={FLAG_NAME: "true"})


@pytest.mark.parametrize(
    ("release", "next_release", "words"),
    [
        ("0.19.1", "0.20.0", ["ships v2"]),
        ("0.20.2", "0.21.0", ["v2 runs instead of legacy"]),
        ("0.32.0", "0.33.0", ["removes legacy", "no effect"]),
    ],
)
def test_next_change(release: str, next_release: str, words: list[str]) -> None:
    change = select(release, flag=UNSET, settings=Settings()).next_change
    assert change is not None
    assert change["release"] == next_release
    for word in words:
        assert word in change["what"]


def test_no_next_change_in_the_last_phase() -> None:
    assert select("0.33.0", flag=UNSET, settings=Settings()).next_change is None


def test_the_line_for_the_log_says_it_all() -> None:
    line = select("0.32.0", flag=OFF, settings=Settings()).one_line()
    for part in ("legacy", VLLM_LEGACY, "provider vllm", "phase 2", "flag off (test)"):
        assert part in line


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"RAYCOMPAT_DISABLE": "1"}, "RAYCOMPAT_DISABLE=1"),
        ({"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS does not allow vllm_ray_compat"),
        ({"VLLM_PLUGINS": ""}, "VLLM_PLUGINS does not allow vllm_ray_compat"),
    ],
)
@pytest.mark.parametrize(
    ("release", "flag", "executor"),
    [
        ("0.19.1", "1", VLLM_LEGACY),
        ("0.20.2", None, VLLM_LEGACY),
        ("0.20.2", "1", VLLM_V2),
        ("0.32.0", None, VLLM_V2),
        ("0.32.0", "0", VLLM_LEGACY),
        ("0.33.0", "0", VLLM_V2),
    ],
)
def test_without_us_the_decision_is_vllms(
    environ: dict[str, str], why: str, release: str, flag: str | None, executor: str
) -> None:
    more = {"RAYCOMPAT_PHASE": "1", "RAYCOMPAT_STRICT": "1", "RAYCOMPAT_RESTORE_LEGACY": "1"}
    decision = select(release, environ={**environ, **more, **({FLAG_NAME: flag} if flag else {})})
    assert (decision.executor, decision.routed, decision.warnings) == (executor, False, ())
    assert why in decision.reasons[0]
    decision.enforce()


@pytest.mark.parametrize(
    ("release", "noted"),
    [("0.15.1", True), ("0.18.1", True), ("0.19.0", False), ("0.20.2", False), ("0.32.0", False)],
)
def test_where_v2_runs_without_async_scheduling(release: str, noted: bool) -> None:
    notes = select(release, flag=ON, settings=Settings()).notes
    assert any("without async scheduling" in note for note in notes) is noted


def test_our_name_in_the_allow_list_is_enough() -> None:
    assert select("0.32.0", environ={"VLLM_PLUGINS": "a,vllm_ray_compat"}).routed
