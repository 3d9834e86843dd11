"""Markers by folder: ``unit``, ``engine``, and ``conformance``, which needs engines, too."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(_HERE).parts[0]
        item.add_marker(getattr(pytest.mark, folder))
        if folder == "conformance":
            item.add_marker(pytest.mark.engine)
        if folder == "unit" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(120))


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say which flag and settings they mean; those of the shell do not leak in."""
    import os

    for name in list(os.environ):
        if name.startswith(("RAYCOMPAT_", "VLLM_", "_VLLM_RAY_COMPAT")):
            monkeypatch.delenv(name)
