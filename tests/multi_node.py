"""A Ray cluster of several nodes for a test, made and removed by ``scripts/multi_node.sh``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.documents import ROOT
from tests.engine_fixtures import read_answers
from vllm_ray_compat.parity.environment import base_environment

SCRIPT = str(ROOT / "scripts" / "multi_node.sh")
CASES = str(ROOT / "tests" / "engine" / "multi_node_cases.py")
CASES_NEED = {
    "PYTHONPATH": str(ROOT / "tests" / "conformance"),  # of looking.py
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
#: Seconds to make a cluster: a node takes five to ten on two idle cores.
UP_S = 180


def address(node: int) -> str:
    return f"198.18.0.{node}"


class Nodes:
    """The cluster, while the context lasts; the test is skipped where this machine cannot."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._name = f"t{os.getpid()}"

    def _script(self, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", SCRIPT, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            # Ray is started with what the script says, not with what other tests have set.
            env={
                **base_environment(os.environ, cpu=True),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )

    def __enter__(self) -> Nodes:
        owner = ("--owner", str(os.getpid()))
        done = self._script("up", "--name", self._name, *owner, *self._options, timeout=UP_S)
        if done.returncode == 3:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stdout + done.stderr
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        done = self._script("down", "--name", self._name, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        assert f"{self._name}-" not in left
        assert not self.folder.exists()

    @property
    def folder(self) -> Path:
        return Path("/tmp", f"raycompat-{self._name}")

    def blocked(self) -> list[str]:
        """Return what the firewall of the link has stopped: ``from -> to``, each once."""
        lines = (self.folder / "link.log").read_text(encoding="utf-8").splitlines()
        return sorted({line.partition(" ")[2] for line in lines if line.startswith("blocked")})

    def run_cases(
        self,
        model: Path,
        log: Path,
        *cases: str,
        node: int = 1,
        environ: Mapping[str, str] | None = None,
        timeout: float = 580,
    ) -> dict[str, dict[str, Any]]:
        """Run cases of multi_node_cases.py in one process on *node*; returns what each found."""
        variables = {**CASES_NEED, **(environ or {})}
        command: Sequence[str] = (
            *("bash", SCRIPT, "exec", "--name", self._name, str(node), "env"),
            *(f"{name}={value}" for name, value in variables.items()),
            *(sys.executable, CASES, str(model), *cases),
        )
        with log.open("wb") as file:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            )
        text = log.read_text(encoding="utf-8", errors="replace")
        found = read_answers(text)
        print(text[-20000:])
        assert [one["case"] for one in found] == list(cases), text[-4000:]
        return {one["case"]: one for one in found}
