"""``parity matrix``: what makes sense, in parts that lose nothing, fit for GitHub."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat import schedule
from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.flag import Flag, parse_flag
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity import matrix
from vllm_ray_compat.schedule import COMPAT_EXECUTORS, RELEASES, VLLM_EXECUTORS, Backend
from vllm_ray_compat.selector import select
from vllm_ray_compat.settings import Settings, read_settings

OWN_LEGACY = COMPAT_EXECUTORS[Backend.LEGACY]


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_ray_compat", "parity", "matrix", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("release", "phase", "pairs"),
    [
        ("0.19.1", 0, [("legacy", "vllm", "v2", "vllm_ray_compat")]),
        ("0.20.2", 1, [("legacy", "vllm", "v2", "vllm")]),
        ("0.25.1", 2, [("legacy", "vllm", "v2", "vllm")]),
        (
            "0.32.0",
            2,
            [("legacy", "vllm", "v2", "vllm"), ("legacy", "vllm", OWN_LEGACY, "vllm_ray_compat")],
        ),
        ("0.33.0", 3, [("legacy", "vllm_ray_compat", "v2", "vllm")]),
        ("0.34.0", 3, [("legacy", "vllm_ray_compat", "v2", "vllm")]),
    ],
)
def test_the_pairs_of_each_phase(release: str, phase: int, pairs: list[tuple[str, ...]]) -> None:
    entries = [cell.to_dict() for cell in matrix.build([release], ["tp2pp2"]).cells]
    assert [(e["phase"], e["topology"], e["devices"]) for e in entries] == (
        [(phase, "tp2pp2", 4)] * len(pairs)
    )
    assert [
        (e["reference"], e["providers"]["reference"], e["candidate"], e["providers"]["candidate"])
        for e in entries
    ] == pairs


@pytest.mark.parametrize("release", RELEASES)
def test_what_an_entry_says_is_what_runs_with_its_environment(release: str) -> None:
    for cell in matrix.build([release], ["tp2"]).cells:
        entry = cell.to_dict()
        for role in ("reference", "candidate"):
            environ = entry["environment"][role]
            if ":" in entry[role]:
                assert (environ, entry["executors"][role]) == ({}, entry[role])
                continue
            flag = parse_flag(environ[FLAG_NAME], "test")
            decision = select(release, flag=flag, settings=read_settings(environ))
            assert decision.backend.value == entry[role]
            assert decision.executor == entry["executors"][role]
            assert decision.provider == entry["providers"][role]
            if len(environ) > 1:  # and it is needed
                assert select(release, flag=flag, settings=Settings()) != decision


def test_all_releases_topologies_and_names() -> None:
    cells = matrix.build().cells
    assert {(c.release, str(c.topology)) for c in cells} == {
        (release, topology) for release in RELEASES for topology in matrix.TOPOLOGIES
    }
    assert len({c.id for c in cells}) == len({c.name for c in cells}) == len(cells)
    assert all(re.fullmatch(r"[\w.-]+", c.id) for c in cells), "names of artifacts"
    assert [c.release for c in cells] == sorted((c.release for c in cells), key=RELEASES.index)
    (one,) = matrix.build(["0.33.0"], ["tp2"]).cells
    assert one.name == "vLLM 0.33.0, tp2, legacy (vllm_ray_compat) vs v2 (vllm)"


def test_a_table_that_changes_changes_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written down: were V2 not removed from phase 0, and ours gone, it would follow."""
    monkeypatch.setitem(COMPAT_EXECUTORS, Backend.V2, "vllm_ray_compat.executors.none:X")
    built = matrix.build(["0.19.1", "0.20.2"], ["tp2"])
    assert [c.release for c in built.cells] == ["0.20.2"]
    assert "vLLM 0.19.1" in built.left_out[0]
    monkeypatch.setattr(schedule, "RELEASES", RELEASES[: RELEASES.index("0.32.0")])
    assert all(c.candidate.backend == "v2" for c in matrix.build(["0.31.0"], ["tp2"]).cells)
    assert select("0.20.2", flag=Flag(), settings=Settings()).executor in VLLM_EXECUTORS.values()


def test_a_release_is_named_as_it_was_published_and_once() -> None:
    cells = matrix.build(["0.33.0", "0.20", "0.20.0"], ["tp2", "TP2", "tp2pp1"]).cells
    assert [(c.release, str(c.topology)) for c in cells] == [("0.20.0", "tp2"), ("0.33.0", "tp2")]


@given(st.integers(0, 60), st.integers(1, 70))
def test_shards_are_disjoint_complete_balanced_and_the_same_each_time(count: int, n: int) -> None:
    cells = list(range(count))
    parts = [matrix.shard(cells, i, n) for i in range(1, n + 1)]
    assert [cell for part in parts for cell in part] == cells
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == [matrix.shard(cells, i, n) for i in range(1, n + 1)]


@pytest.mark.parametrize(
    "text", ["0/3", "4/3", "1", "1/0", "a/b", "1/3/5", "-1/3", "1.0/2", "", "1/2 ", "١/٢"]
)
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"part I of N, two whole numbers with 1 ≤ I ≤ N"):
        matrix.parse_shard(text)


def test_github_is_one_line_that_is_json() -> None:
    done = cli("--format", "github", "--release", "0.32.0", "0.33.0", "--release", "0.19.1")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    include = json.loads(line)["include"]
    assert {entry["release"] for entry in include} == {"0.19.1", "0.32.0", "0.33.0"}
    assert len(include) == 12  # three topologies, and the restored executor beside the original
    shards = [cli("--format", "github", "--release", "0.33.0", "--shard", f"{i}/4") for i in (1, 4)]
    # Exactly this is what the workflow takes for a shard without jobs.
    assert [s.stdout.strip() == '{"include":[]}' for s in shards] == [True, False]


def test_json_is_one_object_that_says_what_it_is() -> None:
    done = cli("--shard", "2/3", "--python", "3.12")
    told = json.loads(done.stdout)
    assert (told["schema"], told["shard"]) == ("vllm_ray_compat.matrix/1", "2/3")
    assert told["left_out"] == []
    assert told["total"] == len(matrix.build().cells)
    assert {entry["python"] for entry in told["include"]} == {"3.12"}


def test_more_jobs_than_github_takes() -> None:
    topologies = [f"tp{n}" for n in range(1, 12)]
    done = cli("--format", "github", "--topology", *topologies)
    assert done.returncode == 2
    assert "GitHub runs at most 256 of one matrix" in done.stderr
    assert "2 parts would do" in done.stderr
    assert cli("--format", "json", "--topology", *topologies).returncode == 0
    assert cli("--format", "github", "--topology", *topologies, "--shard", "2/2").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shard", "3/2"], "--shard '3/2' is not I/N"),
        (["--release", "0.3x"], "Did you mean"),
        (["--release", "0.9.0"], "older than 0.15.0"),
        (["--topology", "tp2x"], "Unknown topology 'tp2x'"),
        (["--python", "3"], "--python '3' is not a version of Python"),
        (["--format", "gitlab"], "invalid choice: 'gitlab'"),
        (["--shrd", "1/2"], "--shrd"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_core_is_enough() -> None:
    script = (
        "import sys; sys.argv = ['x', 'parity', 'matrix']\n"
        "for name in ('typer', 'rich', 'pydantic', 'psutil', 'vllm', 'ray', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from vllm_ray_compat.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["include"]
