"""The documents do not drift: tables come from the code, commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, commands_of, read
from vllm_ray_compat.schedule import RELEASES

DOCUMENTS = ("README.md", "migration_guide.md", "docs/placement.md", "docs/doctor.md")
WITHOUT_COMMANDS = ("docs/serve.md", "docs/multi_node.md", "docs/placement_measured.md")

#: Run by the engine tests (parity, serve), or not runnable twice (installation).
ELSEWHERE = ("parity run", "vllm serve", "pip install", "scripts/")


def test_generated_sections_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_run(name: str) -> None:
    commands = [c for c in commands_of(name) if not any(word in c for word in ELSEWHERE)]
    assert commands
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=environ
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr


def test_the_guide_runs_parity_and_a_server_once() -> None:
    """The engine tests take these commands from the guide."""
    commands = commands_of("migration_guide.md")
    assert len([c for c in commands if "parity run" in c]) == 1
    assert len([c for c in commands if "vllm serve" in c]) == 1


@pytest.mark.parametrize("name", [*DOCUMENTS, *WITHOUT_COMMANDS])
def test_python_blocks_compile_and_links_lead_somewhere(name: str) -> None:
    text = read(name)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, name, "exec")
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if not target.startswith("https://"):  # no network in tests
            assert ((ROOT / name).parent / target).exists(), target


def test_releases_named_in_the_guide_exist() -> None:
    named = set(re.findall(r"\b0\.(?:1[5-9]|[23]\d)\.\d+\b", read("migration_guide.md")))
    assert named <= set(RELEASES)


def test_no_machine_of_ours_is_named() -> None:
    """Nothing in the project names a package index or a path of one machine."""
    files = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    for name in files.stdout.split():
        if name in ("LICENSE", "tests/unit/test_documents.py") or name.endswith(".png"):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for word in ("--index-url", "--find-links", "/opt/", "/work/", "files.pythonhosted"):
            assert word not in text, f"{name}: {word}"
