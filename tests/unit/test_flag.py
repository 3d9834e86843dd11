from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat.errors import EXIT_USAGE
from vllm_ray_compat.flag import Flag, FlagValue, InvalidFlagError, parse_flag, read_flag
from vllm_ray_compat.names import FLAG_NAME, INVALID_FLAG_NAME


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (None, FlagValue.UNSET),
        ("1", FlagValue.ON),
        ("0", FlagValue.OFF),
        (" 1 ", FlagValue.ON),
        ("0\n", FlagValue.OFF),
    ],
)
def test_accepted(raw: str | None, value: FlagValue) -> None:
    assert parse_flag(raw, "here").value is value


def test_unset_has_no_source_but_the_default() -> None:
    assert read_flag({}) == Flag(FlagValue.UNSET, None, "default")


def test_source_is_the_variable() -> None:
    assert read_flag({FLAG_NAME: "1"}).source == f"environment variable {FLAG_NAME}"


@pytest.mark.parametrize("raw", ["true", "True", "", " ", "2", "-1", "01", "1.0", "on", "no", "v2"])
def test_refused_with_value_accepted_values_and_place(raw: str) -> None:
    with pytest.raises(InvalidFlagError) as caught:
        read_flag({FLAG_NAME: raw})
    text = str(caught.value)
    assert repr(raw) in text
    assert f"environment variable {FLAG_NAME}" in text
    assert "Accepted: 1" in text
    assert "0 (" in text
    assert "unset" in text
    assert "\n" not in text
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ("true", f"set {FLAG_NAME}=1"),
        ("OFF", f"set {FLAG_NAME}=0"),
        ("", "remove the variable"),
        ("2", "vLLM alone would read it as 1"),
        ("00", "vLLM alone would read it as 0"),
        ("perhaps", "Set 0 or 1"),
    ],
)
def test_the_hint_fits_the_mistake(raw: str, hint: str) -> None:
    assert hint in str(InvalidFlagError(raw, "here"))


def test_a_value_set_aside_by_the_plugin_is_still_refused() -> None:
    with pytest.raises(InvalidFlagError, match="'true'"):
        read_flag({INVALID_FLAG_NAME: "true"})


def test_a_corrected_flag_wins_over_a_value_set_aside() -> None:
    assert read_flag({FLAG_NAME: "0", INVALID_FLAG_NAME: "true"}).value is FlagValue.OFF


@given(st.text())
def test_what_is_accepted_vllm_reads_the_same_way(raw: str) -> None:
    try:
        flag = parse_flag(raw, "here")
    except InvalidFlagError:
        return
    assert (flag.value is FlagValue.ON) is bool(int(raw))
