from __future__ import annotations

import pytest

from vllm_ray_compat.errors import EXIT_USAGE
from vllm_ray_compat.settings import NAMES, Settings, SettingsError, is_on, read_settings


def test_nothing_set() -> None:
    assert read_settings({"PATH": "/bin", "VLLM_X": "1"}) == Settings()


def test_everything_set() -> None:
    found = read_settings(
        {
            "RAYCOMPAT_PHASE": "3",
            "RAYCOMPAT_STRICT": "1",
            "RAYCOMPAT_RESTORE_LEGACY": " 1 ",
            "RAYCOMPAT_PLACEMENT_TIMEOUT_S": " 2.5",
            "RAYCOMPAT_CPU": "0",
            "RAYCOMPAT_DISABLE": "",
        }
    )
    assert (found.phase, found.strict, found.restore_legacy) == (3, True, True)
    assert (found.cpu, found.disable) == (False, False)
    assert found.placement_timeout_s == 2.5
    assert found.phase_source == "environment variable RAYCOMPAT_PHASE=3"


def test_all_errors_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"RAYCOMPAT_PHASE": "4", "RAYCOMPAT_STRICT": "yes", "RAYCOMPAT_CPU": "1"})
    assert "RAYCOMPAT_PHASE='4' (accepted: 0, 1, 2 or 3)" in str(caught.value)
    assert "RAYCOMPAT_STRICT='yes' (accepted: 0 or 1)" in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize("value", ["0", "-1", "5 min", "nan", "inf"])
def test_seconds_to_wait_for_a_placement_group(value: str) -> None:
    with pytest.raises(SettingsError, match=f"TIMEOUT_S='{value}' .accepted: seconds, more than 0"):
        read_settings({"RAYCOMPAT_PLACEMENT_TIMEOUT_S": value})


def test_unknown_names_are_kept_for_a_warning() -> None:
    assert read_settings({"RAYCOMPAT_STRCT": "1"}).unknown == ("RAYCOMPAT_STRCT",)


@pytest.mark.parametrize("name", NAMES)
def test_no_setting_can_be_taken_for_a_variable_of_vllms(name: str) -> None:
    assert not name.startswith("VLLM_")


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), (" 1", True), ("0", False), ("true", False)]
)
def test_is_on(value: str, on: bool) -> None:
    assert is_on("RAYCOMPAT_CPU", {"RAYCOMPAT_CPU": value}) is on
    assert not is_on("RAYCOMPAT_CPU", {})
