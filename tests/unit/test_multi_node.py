"""What scripts/multi_node.sh decides before it makes anything: wrong usage, and machines without."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT

SCRIPT = str(ROOT / "scripts" / "multi_node.sh")


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path or os.environ["PATH"]},
    )


def command(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "up, exec, env, run or down"),
        (["fly"], "up, exec, env, run or down"),
        (["up", "--fly"], "unknown option '--fly'"),
        (["up", "--devices"], "--devices needs a value"),
        (["up", "--devices", "2,x"], "numbers with a comma between them"),
        (["up", "--name", "../etc"], "--name ../etc"),
        (["exec", "1"], "exec needs a node and a command"),
        (["run"], "run needs a command"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr


def test_a_user_that_is_not_root_is_told(tmp_path: Path) -> None:
    command(tmp_path, "id", "echo 1000")
    done = run("up", "--name", "unittest", path=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 3
    assert done.stderr.startswith("Error: making network namespaces needs root")


def test_a_machine_that_allows_no_namespace_is_told(tmp_path: Path) -> None:
    command(tmp_path, "id", "echo 0")
    for name in ("unshare", "nsenter", "setsid", "mount"):
        command(tmp_path, name, "exit 1")
    command(tmp_path, "ip", "echo 'Operation not permitted' >&2; exit 1")
    done = run("up", "--name", "unittest", path=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 3
    assert "allows no network namespace: Operation not permitted" in done.stderr


def test_down_is_fine_where_nothing_is_up() -> None:
    assert run("down", "--name", "unittest").returncode == 0


def test_a_node_that_is_not_there() -> None:
    for arguments in (
        ["exec", "--name", "unittest", "1", "true"],
        ["env", "--name", "unittest", "1"],
    ):
        done = run(*arguments)
        assert done.returncode == 1
        assert "there is no node" in done.stderr
