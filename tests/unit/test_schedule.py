from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.version import Version

from vllm_ray_compat import schedule
from vllm_ray_compat.errors import EXIT_USAGE
from vllm_ray_compat.schedule import RELEASES, SCHEDULE, Backend, Phase, ScheduleError, validate


@pytest.mark.parametrize(
    ("release", "phase"),
    [
        *((release, 0) for release in RELEASES if Version(release) < Version("0.20")),
        *((release, 1) for release in ("0.20.0", "0.20.1", "0.20.2")),
        *((r, 2) for r in RELEASES if Version("0.21") <= Version(r) < Version("0.33")),
        *((release, 3) for release in ("0.33.0", "0.34.1", "1.0.0")),
        ("0.32.0+cpu", 2),
        ("0.33.0rc1", 3),
        ("0.20.1.dev45+gabcdef0", 1),
        ("0.19.1.post2", 0),
    ],
)
def test_phase_of_a_release(release: str, phase: int) -> None:
    assert schedule.row_for(Version(release)).phase == phase


def test_the_table_is_the_measured_one() -> None:
    assert [
        (int(r.phase), str(r.since), r.default.value, sorted(b.value for b in r.ships))
        for r in SCHEDULE
    ] == [
        (0, "0.15.0", "legacy", ["legacy"]),
        (1, "0.20.0", "legacy", ["legacy", "v2"]),
        (2, "0.21.0", "v2", ["legacy", "v2"]),
        (3, "0.33.0", "v2", ["v2"]),
    ]


def test_spans() -> None:
    assert [schedule.span(row) for row in SCHEDULE] == [
        "0.15.0 – 0.19.1",
        "0.20.0 – 0.20.2",
        "0.21.0 – 0.32.0",
        "0.33.0 and later",
    ]


def test_removal() -> None:
    assert schedule.removal(Backend.LEGACY) == Version("0.33.0")
    assert schedule.removal(Backend.V2) is None


def test_next_row() -> None:
    assert [schedule.next_row(row) for row in SCHEDULE] == [*SCHEDULE[1:], None]


@pytest.mark.parametrize(
    ("ships", "phase"),
    [({Backend.LEGACY}, 0), (set(Backend), 2), ({Backend.V2}, 3), (set(), 3)],
)
def test_the_row_of_a_vllm_without_a_release(ships: set[Backend], phase: int) -> None:
    assert schedule.row_for_ships(frozenset(ships)).phase == phase


@pytest.mark.parametrize("text", ["0.24.0", "0.24", "0.24.0+acme", "0.24.0.dev3", "0.33.1", "1.0"])
def test_known_release(text: str) -> None:
    assert schedule.parse_release(text)


def test_beyond() -> None:
    assert not schedule.is_beyond(Version("0.33.0"))
    assert schedule.is_beyond(Version("0.33.1"))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0.3x", "Did you mean"),
        ("latest", "Known: 0.15.0"),
        ("0.14.1", "older than 0.15.0"),
        ("", "Known"),
        ("0.25.99", "There is no vLLM release 0.25.99"),
        ("0.20.7", "There is no vLLM release"),
        ("1!0.24.0", "older than"),
    ],
)
def test_unknown_release(text: str, hint: str) -> None:
    with pytest.raises(schedule.UnknownReleaseError, match=hint) as caught:
        schedule.parse_release(text)
    assert caught.value.exit_code == EXIT_USAGE


def _changed(index: int, **changes: object) -> list[schedule.Row]:
    rows = list(SCHEDULE)
    rows[index] = replace(rows[index], **changes)  # type: ignore[arg-type]
    return rows


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "empty"),
        (_changed(2, since=Version("0.20.0")), "does not come after"),
        (_changed(2, phase=Phase.OFF_BY_DEFAULT), "phase 1 follows phase 1"),
        (list(SCHEDULE[1:]), "first row is phase 1"),
        ([SCHEDULE[0], SCHEDULE[2]], "phase 2 follows phase 0"),
        (_changed(3, default=Backend.LEGACY), "prefers legacy, which it does not ship"),
        (
            [
                *_changed(2, ships=frozenset({Backend.V2}))[:3],
                replace(SCHEDULE[3], ships=frozenset(Backend)),
            ],
            "legacy comes back after its removal",
        ),
        (_changed(0, since=Version("0.16.0")), "older than the first row"),
        (_changed(3, since=Version("0.40.0")), "no release lies in it"),
        (_changed(3, since=Version("0.32.1")), "first release 0.32.1 is not listed"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(rows: list[schedule.Row], fault: str) -> None:
    with pytest.raises(ScheduleError, match=fault):
        validate(rows, RELEASES)


def test_all_faults_are_reported_at_once() -> None:
    rows = _changed(3, default=Backend.LEGACY, since=Version("0.40.0"))
    with pytest.raises(ScheduleError) as caught:
        validate(rows, RELEASES)
    assert "prefers legacy" in str(caught.value)
    assert "no release lies in it" in str(caught.value)


def test_releases_must_be_sorted() -> None:
    with pytest.raises(ScheduleError, match="not sorted"):
        validate(SCHEDULE, ["0.16.0", "0.15.0", "0.20.0", "0.21.0", "0.33.0"])
