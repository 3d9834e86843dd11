"""What the scripts decide: which releases, which parts, which exit code. What they run is faked."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT
from vllm_ray_compat.executors.repairs.legacy_refusal import refusing
from vllm_ray_compat.executors.repairs.repair import RepairRefusalError
from vllm_ray_compat.parity.report.data import KNOWN_DIFFERENCES

FAKE = """#!/bin/bash
echo "$(basename "$0") $*" >>"$FAKE_LOG"
for word in $FAKE_FAILS; do
  case "$0 $*" in *"$word"*) exit "${FAKE_CODE:-1}" ;; esac
done
"""


def fake(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE)
    path.chmod(0o755)


class Tree:
    """A copy of the scripts, with fakes of what they run."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.cache = folder / "cache"
        self.log = folder / "log"
        for name in ("scripts", ".ci", "requirements"):
            shutil.copytree(ROOT / name, self.root / name)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        (self.root / "tests" / "engine").mkdir(parents=True)
        (self.root / "tests" / "engine" / "test_repairs_legacy.py").touch()
        self.environ = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(self.cache),
            "FAKE_LOG": str(self.log),
        }
        self.bin = folder / "bin"

    def run(self, script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.root / script), *arguments],
            capture_output=True,
            text=True,
            env={**self.environ, **environ},
            cwd=self.root.parent,
        )

    def did(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def make_environment(self, release: str, *locks: str) -> Path:
        """Make what test_release.sh takes for the environment of *release*, set up already."""
        text = b"".join((self.root / "requirements" / lock).read_bytes() for lock in locks)
        key = hashlib.sha256(text).hexdigest()[:12]
        cache = self.cache / "vllm-ray-compat"
        env = cache / "envs" / f"{release}-{key}"
        for name in ("python", "vllm-ray-compat"):
            fake(env / "bin" / name)
        fake(cache / "tools" / "bin" / "uv")
        (env / ".raycompat-root").write_text("another checkout\n")
        return env


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "name a release: 0.15.1"),
        (["9.9.9"], 2, "there is no lock for vLLM 9.9.9. There are: 0.15.1"),
        (["--setup"], 2, "usage: bash scripts/test_release.sh --setup RELEASE"),
        (["--exists", "0.19.1", "more"], 2, "usage:"),
        (["--list", "0.19.1"], 2, "usage: bash scripts/test_release.sh --list"),
        (["--lock", "0.33.0"], 2, "bash scripts/lock.sh"),
        (["--exists", "9.9.9"], 2, "there is no lock"),
        (["--exists", "0.19.1"], 1, ""),
    ],
)
def test_usage(tree: Tree, arguments: list[str], code: int, text: str) -> None:
    tree.make_environment("0.16.0", "releases/0.16.0.txt")
    done = tree.run("scripts/test_release.sh", *arguments)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert tree.did() == []


def test_the_list_is_the_locks_and_makes_nothing(tree: Tree) -> None:
    done = tree.run("scripts/test_release.sh", "--list", PYTHON="/no/such/python")
    locks = {path.stem for path in (ROOT / "requirements" / "releases").glob("*.in")}
    assert done.stdout.split() == [*sorted(locks), "0.32.0", "0.33.0"]
    assert done.returncode == 0
    assert tree.did() == []
    assert not tree.cache.exists()


def test_a_python_that_is_none(tree: Tree) -> None:
    done = tree.run("scripts/test_release.sh", "0.19.1", PYTHON="/no/such/python")
    assert done.returncode == 3
    assert "PYTHON=/no/such/python is not one" in done.stderr


def test_the_search_for_a_python_changes_nothing(tree: Tree) -> None:
    before = sorted(tree.root.rglob("*"))
    done = subprocess.run(
        ["bash", "-c", 'source "$0"; raycompat_python', str(tree.root / "scripts" / "python.sh")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).exists()
    assert sorted(tree.root.rglob("*")) == before


def test_all_parts_of_a_release_run(tree: Tree) -> None:
    env = tree.make_environment("0.19.1", "releases/0.19.1.txt")
    (tree.root / "tests" / "conformance").mkdir()
    (tree.root / "tests" / "engine" / "test_repairs_v2.py").touch()
    assert tree.run("scripts/test_release.sh", "--exists", "0.19.1").returncode == 0
    done = tree.run("scripts/test_release.sh", "0.19.1")
    assert done.returncode == 0, done.stderr
    install, parity, *tests = tree.did()
    assert install.startswith("uv --quiet pip install")
    assert "--topology tp2 --topology pp2" in parity
    assert "--reference legacy --candidate v2" in parity
    assert [line.split()[3] for line in tests] == [
        "tests/conformance",
        "tests/engine/test_repairs_legacy.py",
        "tests/engine/test_repairs_v2.py",
    ]
    assert done.stdout.count("PASS") == 4
    # Made for this checkout now: nothing is installed again, unless the package changes.
    assert tree.run("scripts/test_release.sh", "--setup", "0.19.1").stdout == f"{env}\n"
    assert [line.split()[0] for line in tree.did()].count("uv") == 1
    with (tree.root / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert tree.run("scripts/test_release.sh", "--setup", "0.19.1").stdout == f"{env}\n"
    assert [line.split()[0] for line in tree.did()].count("uv") == 2


@pytest.mark.parametrize("fails", ["parity", "test_repairs_legacy.py"])
def test_a_failure_is_not_masked_and_ends_nothing(tree: Tree, fails: str) -> None:
    tree.make_environment("0.33.0", "vllm-0.32.0-cpu.txt", "test.txt")
    done = tree.run("scripts/test_release.sh", "0.33.0", FAKE_FAILS=fails, FAKE_CODE="5")
    assert done.returncode == 5
    assert done.stdout.count("FAIL, exit code 5") == 1
    assert done.stdout.count("PASS") == 1
    assert "tests/conformance: not there" in done.stdout


def test_quick_is_parity_alone(tree: Tree) -> None:
    tree.make_environment("0.19.1", "releases/0.19.1.txt")
    assert tree.run("scripts/test_release.sh", "--quick", "0.19.1").returncode == 0
    _, parity = tree.did()
    assert parity.endswith("--topology tp2")


class TestCi:
    @pytest.fixture(autouse=True)
    def _fakes(self, tree: Tree) -> None:
        for name in ("ruff", "mypy"):
            fake(tree.bin / name)
        (tree.root / "scripts" / "environment.sh").write_text("")
        fake(tree.root / "scripts" / "test.sh")

    def quick(self, tree: Tree) -> list[str]:
        """Return the environments in which parity was run."""
        return [line for line in tree.did() if "parity run" in line]

    def test_releases_without_environments_are_left_out(self, tree: Tree) -> None:
        done = tree.run(".ci/run")
        assert done.returncode == 0, done.stderr
        assert [line.split()[0] for line in tree.did()] == ["ruff", "ruff", "mypy", "test.sh"]
        assert done.stdout.count("left out, no environment here") == 2

    def test_releases_with_environments_run(self, tree: Tree) -> None:
        tree.make_environment("0.33.0", "vllm-0.32.0-cpu.txt", "test.txt")
        done = tree.run(".ci/run")
        assert done.returncode == 0, done.stderr
        assert len(self.quick(tree)) == 1
        assert "vLLM 0.19.1: left out" in done.stdout
        assert "vLLM 0.33.0: parity: PASS" in done.stdout

    def test_named_ones_run_once(self, tree: Tree) -> None:
        tree.make_environment("0.19.1", "releases/0.19.1.txt")
        tree.make_environment("0.16.0", "releases/0.16.0.txt")
        done = tree.run(".ci/run", CI_RELEASES="0.16.0 0.19.1")
        assert done.returncode == 0, done.stderr
        assert len(self.quick(tree)) == 2
        assert "vLLM 0.16.0: parity: PASS" in done.stdout

    def test_none(self, tree: Tree) -> None:
        tree.make_environment("0.19.1", "releases/0.19.1.txt")
        assert tree.run(".ci/run", CI_RELEASES="none").returncode == 0
        assert self.quick(tree) == []

    @pytest.mark.parametrize("fails", ["ruff", "test.sh", "parity"])
    def test_a_failure_fails(self, tree: Tree, fails: str) -> None:
        tree.make_environment("0.19.1", "releases/0.19.1.txt")
        assert tree.run(".ci/run", FAKE_FAILS=fails).returncode == 1


class TestGpus:
    """There are none here, so what is asked of them, and what is made of the answer."""

    @pytest.fixture(autouse=True)
    def _fakes(self, tree: Tree) -> None:
        for name in ("vllm-ray-compat", "nvidia-smi"):
            fake(tree.bin / name)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [([], "name a folder for the results"), (["out", "smok"], "there is no part smok")],
    )
    def test_usage(self, tree: Tree, arguments: list[str], text: str) -> None:
        done = tree.run("scripts/gpus.sh", *arguments)
        assert done.returncode == 2
        assert text in done.stderr
        assert "parts: smoke full" in done.stderr
        assert tree.did() == []

    def test_cases_that_end_as_they_must(self, tree: Tree, tmp_path: Path) -> None:
        out = tmp_path / "out"
        environ = {"MODEL": "org/model", "ENGINE_ARGS": "dtype=bfloat16 max_model_len=512"}
        done = tree.run("scripts/gpus.sh", str(out), "bundles", "bench", **environ)
        assert done.returncode == 0, done.stderr
        (bundles, control, decode) = tree.did()
        shared = "--model org/model --engine-arg dtype=bfloat16 --engine-arg max_model_len=512"
        assert bundles.endswith(
            f"--bundle-indices 1,0 {shared} --report-dir {out}/bundles-reversed"
        )
        assert control.startswith("vllm-ray-compat bench control-plane")
        assert decode.startswith("vllm-ray-compat bench decode")
        assert (out / "gpus.md").read_text().count("| ok | 0 |") == 3
        assert (out / "bench-decode.log").exists()

    def test_one_case_that_does_not_ends_nothing(self, tree: Tree, tmp_path: Path) -> None:
        out = tmp_path / "out"
        done = tree.run(
            *("scripts/gpus.sh", str(out), "smoke", "async"), FAKE_FAILS="--suite", FAKE_CODE="3"
        )
        assert done.returncode == 1
        assert "| smoke | WRONG: exit code 0 expected | 3 |" in done.stdout
        assert "| async | ok | 0 |" in done.stdout

    def test_a_failure_has_to_be_the_expected_one(self, tree: Tree, tmp_path: Path) -> None:
        done = tree.run("scripts/gpus.sh", str(tmp_path / "silent"), "wrong", FAKE_FAILS="parity")
        assert done.returncode == 1
        assert done.stdout.count("| WRONG: exit code 1 expected, and ") == 2
        # What every run with legacy prints, and what only the refusal says.
        known = "\n".join(one.effect for one in KNOWN_DIFFERENCES)
        refusal = self.refusal()
        for name, printed, ok in (("known", known, 0), ("refusal", known + refusal, 1)):
            said = tmp_path / f"{name}.txt"
            said.write_text(printed)
            program = tree.bin / "vllm-ray-compat"
            program.write_text(FAKE.replace("for word", f"cat {said}\nfor word"))
            done = tree.run("scripts/gpus.sh", str(tmp_path / name), "wrong", FAKE_FAILS="parity")
            assert done.stdout.count("| refused | ok | 1 |") == ok
            assert (
                '| wrong | WRONG: exit code 1 expected, and "RayChannelTimeoutError" | 1 |'
                in done.stdout
            )

    def refusal(self) -> str:
        """Return what the repaired legacy executor says of what it would serve wrongly."""
        executor = refusing(lambda _: "a reason", "legacy-model-runner")
        made: Any = executor()
        made.vllm_config = None
        with pytest.raises(RepairRefusalError) as told:
            made._init_executor()
        return str(told.value)

    def test_every_part_asks_something_that_the_command_line_has(
        self, tree: Tree, tmp_path: Path
    ) -> None:
        """What is asked of GPUs is read by nobody here: at least its options exist."""
        done = tree.run("scripts/gpus.sh", "--list")
        for part in done.stdout.split():
            tree.run("scripts/gpus.sh", str(tmp_path / part), part)
        asked = [line for line in tree.did() if line.startswith("vllm-ray-compat")]
        options = set(re.findall(r"--[a-z-]+", "\n".join(asked)))
        known = "".join(
            subprocess.run(
                [sys.executable, "-m", "vllm_ray_compat", *command, "--help"],
                capture_output=True,
                text=True,
                env={**os.environ, "COLUMNS": "200"},
            ).stdout
            for command in (("parity", "run"), ("bench", "decode"), ("bench", "control-plane"))
        )
        assert options
        assert [option for option in options if f"{option} " not in known] == []
