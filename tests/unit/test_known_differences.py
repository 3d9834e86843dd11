"""The table of what vLLM's executors are known not to do says nothing that cannot be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from packaging.version import Version

from tests.conformance import known_differences
from tests.conformance.known_differences import KNOWN_DIFFERENCES, KnownDifference, known_difference
from vllm_ray_compat.schedule import RELEASES, Backend, row_for

TESTS = Path(known_differences.__file__).with_name("test_executors.py")


def ships(backend: str, release: str) -> bool:
    return backend == "mp" or Backend(backend) in row_for(Version(release)).ships


def test_every_behaviour_is_a_test() -> None:
    tree = ast.parse(TESTS.read_text(encoding="utf-8"))
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    named = {name for known in KNOWN_DIFFERENCES for name in known.behaviours}
    assert named <= tests


@pytest.mark.parametrize("known", KNOWN_DIFFERENCES, ids=lambda known: known.behaviours[0])
def test_every_entry_applies_to_some_release(known: KnownDifference) -> None:
    assert known.since in RELEASES
    assert known.fixed_in is None or known.fixed_in in RELEASES
    assert known.reason
    assert known.source
    case = known.cases[0] if known.cases else None
    for backend in known.backends:
        for behaviour in known.behaviours:
            assert any(
                ships(backend, release)
                and known.applies_to(backend, behaviour, case, Version(release))
                for release in RELEASES
            )


@pytest.mark.parametrize(
    ("backend", "behaviour", "case", "version", "expected"),
    [
        ("v2", "test_a_group_larger_than_needed", None, "0.32.0+cpu", True),
        ("legacy", "test_a_group_larger_than_needed", None, "0.32.0", False),
        ("legacy", "test_a_future", None, "0.19.1", False),
        ("legacy", "test_a_future", None, "0.20.0rc1", True),
        ("legacy", "test_shutdown_ends_the_workers", "tp2pp2", "0.32.0", True),
        ("legacy", "test_shutdown_ends_the_workers", "tp2", "0.32.0", False),
        ("legacy", "test_health_after_a_death", None, "0.33.0", False),
        ("mp", "test_arguments", None, "0.32.0", False),
        ("v2", "test_a_group_larger_than_needed", None, "unknown", False),
    ],
)
def test_what_is_known(
    backend: str, behaviour: str, case: str | None, version: str, expected: bool
) -> None:
    assert (known_difference(backend, behaviour, case, version, ()) is not None) is expected


@pytest.mark.parametrize(("repairs", "expected"), [(["v2-oversized-group"], False), ([], True)])
def test_a_repair_takes_it_away(repairs: list[str], expected: bool) -> None:
    behaviour = "test_a_group_larger_than_needed"
    assert (known_difference("v2", behaviour, None, "0.32.0", repairs) is not None) is expected


def test_another_repair_does_not() -> None:
    behaviour = "test_the_call_after_an_error"
    assert known_difference("v2", behaviour, None, "0.32.0", ["v2-oversized-group"]) is not None
