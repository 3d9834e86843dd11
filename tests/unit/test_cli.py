"""The command line as a user runs it: another process, its exit code, its two streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import SCHEDULE


def cli(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_ray_compat", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """What every refusal has: the exit code, one paragraph on stderr, nothing on stdout."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_status_json_has_what_is_promised() -> None:
    done = cli("status", "--json", **{FLAG_NAME: "0"})
    assert (done.returncode, done.stderr) == (0, "")
    status = json.loads(done.stdout)
    assert status["schema"] == "vllm_ray_compat.status/1"
    assert (status["vllm"], status["phase"]) == ("0.32.0", 2)
    assert (status["backend"], status["provider"]) == ("legacy", "vllm")
    assert status["executor"] == "vllm.v1.executor.ray_executor:RayDistributedExecutor"
    assert status["flag"] == {
        "value": "off",
        "raw": "0",
        "source": f"environment variable {FLAG_NAME}",
    }
    assert status["policy"] == "the installed vLLM 0.32.0"
    assert status["reasons"]
    assert status["warnings"][0]["category"] == "LegacyExecutorRemovedInVllm033Warning"
    assert "legacy-shutdown" in [repair["name"] for repair in status["repairs"]]
    assert status["next_change"]["release"] == "0.33.0"


def test_status_says_the_order_of_ranks() -> None:
    placement = json.loads(cli("status", "--json").stdout)["placement"]
    assert placement["bundle_indices"] is None
    done = cli("status", "--json", "--flag", "0", VLLM_RAY_BUNDLE_INDICES="1, 0")
    placement = json.loads(done.stdout)["placement"]
    assert placement["rank_order"] == "listed_then_sorted"
    assert placement["other_backend"]["rank_order"] == "as_listed"
    assert placement["bundle_indices"] == {"raw": "1, 0", "value": [1, 0], "error": None}
    text = cli("status", "--flag", "1", VLLM_RAY_BUNDLE_INDICES="1, 0").stdout
    assert "rank order:  rank 0 runs in the first bundle that VLLM_RAY_BUNDLE_INDICES" in text
    assert "bundles:     1, 0, from VLLM_RAY_BUNDLE_INDICES" in text
    assert "The legacy executor has another order: VLLM_RAY_BUNDLE_INDICES chooses" in text


def test_bundle_indices_that_cannot_be_fail_status() -> None:
    done = cli("status", VLLM_RAY_BUNDLE_INDICES="0,x")
    assert done.returncode == 1
    assert "ERROR:       VLLM_RAY_BUNDLE_INDICES='0,x' is not a list of numbers" in done.stdout


def test_status_for_a_person() -> None:
    done = cli("status")
    assert done.returncode == 0
    for word in ("0.32.0", "phase:", "v2", "RayExecutorV2", "because:", "next change:"):
        assert word in done.stdout


def test_rehearsals() -> None:
    done = cli("status", "--json", "--as-of-vllm", "0.33.0", "--flag", "0")
    status = json.loads(done.stdout)
    assert (status["phase"], status["backend"], status["policy"]) == (
        3,
        "v2",
        "--as-of-vllm 0.33.0",
    )
    assert status["flag"]["source"] == "--flag"
    status = json.loads(cli("status", "--json", "--phase", "1").stdout)
    assert (status["phase"], status["backend"], status["policy"]) == (1, "legacy", "--phase 1")
    status = json.loads(cli("status", "--json", "--flag", "unset", **{FLAG_NAME: "0"}).stdout)
    assert status["flag"]["value"] == "unset"


def test_strict_exits_1_and_still_prints() -> None:
    done = cli("status", "--json", **{FLAG_NAME: "0", "RAYCOMPAT_STRICT": "1"})
    assert done.returncode == 1
    assert json.loads(done.stdout)["strict"] is True


def test_an_executor_that_is_not_there_exits_1() -> None:
    done = cli("status", "--json", "--as-of-vllm", "0.19.1", "--flag", "1")
    assert json.loads(done.stdout)["executor_present"] is (done.returncode == 0)


def test_a_misspelt_setting_is_reported() -> None:
    assert "Did you mean 'RAYCOMPAT_STRICT'" in cli("status", RAYCOMPAT_STRIKT="1").stdout


def test_schedule() -> None:
    done = cli("schedule", "--json")
    table = json.loads(done.stdout)
    assert table["schema"] == "vllm_ray_compat.schedule/1"
    assert [row["phase"] for row in table["phases"]] == [int(row.phase) for row in SCHEDULE]
    assert cli("schedule").stdout == cli("schedule", "--markdown").stdout
    done = cli("schedule", "--json", "--markdown")
    assert done.returncode == 2
    assert "not allowed with argument --json" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["status"], {FLAG_NAME: "true"}, ["'true'", "Accepted: 1", "environment variable"]),
        (["status", "--flag", "yes"], {}, ["'yes'", "--flag"]),
        (["status", "--as-of-vllm", "0.32.x"], {}, ["Did you mean '0.32.0'"]),
        (["status", "--as-of-vllm", "0.9.1"], {}, ["older than 0.15.0"]),
        (["status", "--phase", "4"], {}, ["Unknown phase '4'"]),
        (["status"], {"RAYCOMPAT_PHASE": "two"}, ["RAYCOMPAT_PHASE='two'"]),
        (["parity", "run", "--topology", "tp3"], {}, ["8 attention heads do not divide"]),
        (["parity", "run", "--topology", "tp2x"], {}, ["Unknown topology 'tp2x'"]),
        (["parity", "run", "--topology", "pp8"], {}, ["at least as many layers"]),
        (["parity", "run", "--model", "/no/such/model"], {}, ["'/no/such/model' does not exist"]),
        (["parity", "run", "--candidate", "v3"], {}, ["Did you mean 'v2'"]),
        (["parity", "run", "--candidate", "no.such:Class"], {}, ["names no executor class"]),
        (["parity", "run", "--candidate", "json:"], {}, ["names no executor class"]),
        (["parity", "run", "--reference", "legcy"], {}, ["Did you mean 'legacy'"]),
        (["parity", "run", "--also", "np"], {}, ["Did you mean 'mp'"]),
        (["parity", "run", "--suite", "smokes"], {}, ["Did you mean 'smoke'"]),
        (["parity", "run", "--inject-fault", "tokens"], {}, ["Did you mean 'token'"]),
        (["parity", "run", "--engine-core", "thread"], {}, ["Unknown engine core 'thread'"]),
        (["parity", "run", "--engine-arg", "x"], {}, ["is not NAME=VALUE"]),
        (["parity", "run", "--report-dir", "/etc/hostname"], {}, ["is a file"]),
        (["parity", "run", "--report-dir", "/proc/raycompat"], {}, ["cannot be written"]),
    ],
)
def test_bad_input(arguments: list[str], environ: dict[str, str], words: list[str]) -> None:
    refused(cli(*arguments, **environ), 2, *words)


def test_an_unknown_option_is_wrong_usage() -> None:
    done = cli("status", "--jsn")
    assert done.returncode == 2
    assert "--jsn" in done.stderr


def test_no_vllm(tmp_path: Path) -> None:
    script = (
        "import importlib.util as u; real = u.find_spec;"
        "u.find_spec = lambda n, *a: None if n == {name!r} else real(n, *a);"
        "import sys; sys.argv = {argv!r};"
        "from vllm_ray_compat.cli import main; main()"
    )
    for name, argv, word in [
        ("vllm", ["x", "status"], "pip install vllm"),
        ("ray", ["x", "parity", "run"], "pip install 'ray[cgraph]'"),
    ]:
        done = subprocess.run(
            [sys.executable, "-c", script.format(name=name, argv=argv)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        refused(done, 3, word)
        assert list(tmp_path.iterdir()) == []


def test_without_the_cli_extra() -> None:
    script = (
        "import sys; sys.argv = {argv!r}; sys.modules['typer'] = sys.modules['rich'] = None;"
        "sys.modules['pydantic'] = None; from vllm_ray_compat.cli import main; main()"
    )

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        code = script.format(argv=["x", *argv])
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    refused(run("parity", "run"), 3, "pip install 'vllm-ray-compat[cli]'")
    assert run("status").returncode == 0
    assert run("schedule", "--json").returncode == 0


def test_a_release_without_the_executor(fake_vllm: Callable, tmp_path: Path) -> None:
    """As in a build of this package that lacks it."""
    fake = fake_vllm("v1/executor/ray_executor.py", version="0.19.1+cpu")
    script = (
        "import sys; from vllm_ray_compat import schedule\n"
        "schedule.COMPAT_EXECUTORS[schedule.Backend.V2] = 'vllm_ray_compat.executors.none:X'\n"
        f"sys.argv[1:] = ['parity', 'run', '--report-dir', {str(tmp_path / 'r')!r}]\n"
        "from vllm_ray_compat.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(fake.root)},
    )
    refused(done, 3, "vLLM 0.19.1+cpu does not ship the v2 Ray executor")
    assert not (tmp_path / "r").exists()
