"""Which repairs are in force: the release, the setting, and what is said of it."""

from __future__ import annotations

from types import ModuleType

import pytest
from packaging.version import Version

from vllm_ray_compat.cli.status import render
from vllm_ray_compat.executors import repairs
from vllm_ray_compat.executors.repairs.repair import (
    Mixin,
    Repair,
    RepairMismatchError,
    select_repairs,
    validate,
)
from vllm_ray_compat.executors.repairs.replacing import replaced
from vllm_ray_compat.flag import Flag, FlagValue
from vllm_ray_compat.schedule import REPAIRED_EXECUTORS, VLLM_EXECUTORS, Backend
from vllm_ray_compat.selector import select
from vllm_ray_compat.settings import Settings, SettingsError, read_settings

ON, OFF = Flag(FlagValue.ON), Flag(FlagValue.OFF)


def repair(name: str = "one", since: str = "0.20.0", fixed_in: str | None = "0.28.0") -> Repair:
    return Repair(
        name=name,
        defects=("V2-0",),
        backends=frozenset({Backend.V2}),
        since=since,
        fixed_in=fixed_in,
        reports=(),
        symptom="It hangs.",
        effect="It does not.",
        executor=Mixin,
    )


@pytest.mark.parametrize(
    ("release", "applies"),
    [
        ("0.19.1", False),
        ("0.20.0", True),
        ("0.27.1", True),
        ("0.27.1+cu130", True),
        ("0.28.0rc1", False),
        ("0.28.0", False),
    ],
)
def test_a_repair_applies_inside_its_range_only(release: str, applies: bool) -> None:
    assert repair().applies_to(Backend.V2, Version(release)) is applies
    assert not repair().applies_to(Backend.LEGACY, Version(release))


def test_an_open_range_ends_where_nobody_has_looked() -> None:
    still_there = repair(fixed_in=None)
    assert still_there.applies_to(Backend.V2, Version("0.33.0"))
    assert still_there.applies_to(Backend.V2, Version("0.33.1"))
    assert not still_there.applies_to(Backend.V2, Version("0.34.0"))
    assert still_there.releases() == "0.20.0 and later"


def test_ranges_as_text() -> None:
    assert repair().releases() == "0.20.0 to 0.27.1"
    assert repair(fixed_in="0.20.1").releases() == "0.20.0 only"


def test_a_vllm_without_a_release_gets_none() -> None:
    assert select_repairs([repair()], Backend.V2, "unknown", None) == ()
    assert select_repairs([repair()], Backend.V2, "0.10.0", None) == ()


def test_they_are_chosen_by_name() -> None:
    table = [repair("one"), repair("two")]

    def names(wanted: frozenset[str] | None) -> list[str]:
        return [r.name for r in select_repairs(table, Backend.V2, "0.21.0", wanted)]

    assert names(None) == ["one", "two"]
    assert names(frozenset({"two"})) == ["two"]
    assert names(frozenset()) == []


def test_the_table_is_checked_as_a_whole() -> None:
    with pytest.raises(AssertionError) as caught:
        validate([repair(), repair(), repair("all"), repair("old", "0.1"), repair("x", "0.28.0")])
    for part in ("one is there twice", "'all' cannot be a name", "0.1 is no release"):
        assert part in str(caught.value)
    assert "x applies to no release" in str(caught.value)


@pytest.mark.parametrize("found", repairs.REPAIRS, ids=lambda found: found.name)
def test_every_repair_says_what_a_person_needs(found: Repair) -> None:
    assert found.symptom.endswith(".")
    assert found.effect.endswith(".")
    assert all(report.startswith("https://") for report in found.reports)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        ("all", None),
        (" none ", frozenset()),
        ("v2-oversized-group,", frozenset({"v2-oversized-group"})),
        ("all,-v2-oversized-group", None),
    ],
)
def test_the_setting(text: str, wanted: frozenset[str] | None) -> None:
    assert read_settings({"RAYCOMPAT_REPAIRS": text}).repairs == wanted


def test_one_is_left_out_and_that_is_said() -> None:
    settings = read_settings({"RAYCOMPAT_REPAIRS": "all, -v2-oversized-group"})
    assert settings.unwanted_repairs == {"v2-oversized-group"}
    decision = select("0.32.0", flag=ON, settings=settings)
    assert "v2-oversized-group" not in [r.name for r in decision.repairs]
    assert "Left out by RAYCOMPAT_REPAIRS: v2-oversized-group." in decision.notes


@pytest.mark.parametrize(
    "text",
    [
        "v2-oversized-grup",
        "all,none",
        "none,v2-oversized-group",
        ",",
        "-v2-oversized-group",
        "all,-x",
    ],
)
def test_a_bad_setting_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match="RAYCOMPAT_REPAIRS"):
        read_settings({"RAYCOMPAT_REPAIRS": text})


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(SettingsError, match="Did you mean 'v2-oversized-group'"):
        read_settings({"RAYCOMPAT_REPAIRS": "v2-oversized-grup"})


def test_the_decision_names_them_and_the_class_that_has_them() -> None:
    decision = select("0.32.0", flag=ON, settings=Settings())
    assert "v2-oversized-group" in [r.name for r in decision.repairs]
    assert decision.executor == VLLM_EXECUTORS[Backend.V2]
    assert decision.loaded == REPAIRED_EXECUTORS[Backend.V2]
    assert decision.provider == "vllm"
    assert "v2-oversized-group" in decision.one_line()
    found = {r["name"]: r for r in decision.to_dict()["repairs"]}["v2-oversized-group"]
    assert found["releases"] == "0.20.0 and later"
    assert found["kind"] == "repair"


def test_none_is_vllms_own_class_and_says_so() -> None:
    decision = select("0.32.0", flag=ON, settings=Settings(repairs=frozenset()))
    assert decision.repairs == ()
    assert decision.loaded == decision.executor == VLLM_EXECUTORS[Backend.V2]
    assert any("v2-oversized-group" in note for note in decision.notes)


def test_status_says_what_is_loaded_repaired_and_refused() -> None:
    lines = render(select("0.32.0", flag=OFF, settings=Settings()), present=True).splitlines()
    assert f"loaded:      {REPAIRED_EXECUTORS[Backend.LEGACY]}, a subclass of it" in lines
    assert any(line.startswith("repaired:    legacy-shutdown (vLLM 0.15.0 to") for line in lines)
    assert any(line.startswith("refuses:     legacy-kv-connector (vLLM") for line in lines)
    none = Settings(repairs=frozenset())
    text = render(select("0.32.0", flag=OFF, settings=none), present=True)
    assert "loaded:" not in text
    assert "repaired:" not in text


def test_what_this_package_provides_is_not_repaired() -> None:
    assert select("0.19.1", flag=ON, settings=Settings()).repairs == ()
    assert select("0.33.0", flag=OFF, settings=Settings(restore_legacy=True)).repairs == ()


def test_a_newer_vllm_is_left_alone_and_that_is_said() -> None:
    decision = select("0.40.0", flag=ON, settings=Settings())
    assert decision.repairs == ()
    assert any("No repairs are applied to vLLM 0.40.0" in note for note in decision.notes)


def test_a_repair_for_another_release_is_named() -> None:
    settings = Settings(repairs=frozenset({"v2-oversized-group"}))
    notes = select("0.19.1", flag=OFF, settings=settings).notes
    assert any("v2-oversized-group is for vLLM 0.20.0 and later" in note for note in notes)


def test_a_disabled_package_repairs_nothing() -> None:
    assert select("0.32.0", flag=ON, settings=Settings(disable=True)).repairs == ()


def test_replacing_is_undone_and_refuses_what_is_not_there() -> None:
    module = ModuleType("made_up")
    module.name = 1  # type: ignore[attr-defined]

    def use() -> None:
        with replaced(module, name=2):
            raise ValueError(module.name)

    with pytest.raises(ValueError, match="2"):
        use()
    assert module.name == 1
    with (
        pytest.raises(RepairMismatchError, match="made_up has no other"),
        replaced(module, other=1),
    ):
        pass
