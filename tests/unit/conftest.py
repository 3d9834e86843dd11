"""A vLLM on disk, small and made up, for what is only read from disk or patched by name.

A mock, because eighteen real releases cannot be installed beside each other in a second; the
engine tests do the same against the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


class FakeVllm:
    """A folder that can stand on ``sys.path`` in a subprocess."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "vllm"

    def write(self, name: str, text: str = "") -> None:
        path = self.package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in [path.parent, *path.parent.parents]:
            if folder == self.root:
                break
            (folder / "__init__.py").touch()
        path.write_text(text)

    def distribution(self, name: str, version: str) -> None:
        info = self.root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("vllm/__init__.py,,\n")
        (info / "top_level.txt").write_text("vllm\n")

    def run(self, script: str, **environ: str) -> str:
        """Run *script* where this vLLM is found first; returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.root), **environ},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Callable[..., FakeVllm]:
    def make(*files: str, version: str | None = None) -> FakeVllm:
        fake = FakeVllm(tmp_path / "site")
        fake.write("__init__.py")
        for name in files:
            fake.write(name)
        if version is not None:
            fake.write(
                "_version.py",
                f"__version__: str\nversion: str\n\n__version__ = version = '{version}'\n",
            )
        return fake

    return make
