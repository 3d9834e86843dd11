"""``doctor`` as a user runs it: its exit codes, its two streams, and what is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.documents import ROOT
from tests.unit.test_cli import cli, refused
from vllm_ray_compat.doctor.registry import CHECKS
from vllm_ray_compat.doctor.schemas import SCHEMAS, examination_schema
from vllm_ray_compat.names import FLAG_NAME

BAD_LINE = "ValueError: Current node has no GPU available.\n"


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    Draft202012Validator(examination_schema()).validate(found)
    assert found["exit_code"] == done.returncode
    return found


def test_the_published_schema_is_fresh_and_well_formed() -> None:
    for name, make in SCHEMAS.items():
        published = json.loads((ROOT / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
        assert published == make(), "run: python scripts/docs.py"
        Draft202012Validator.check_schema(published)
    assert not Draft202012Validator(examination_schema()).is_valid({"schema": "other"})


def test_all_holds() -> None:
    done = cli("doctor", "--json", "--only", "configuration", "--tp", "2")
    found = answer(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert (found["schema"], found["vllm"]) == ("vllm_ray_compat.doctor/1", "0.32.0")
    assert found["backend"] == "v2"
    assert {checked["group"] for checked in found["checks"]} == {"configuration"}
    assert all(checked["left_out"] is None and checked["findings"] for checked in found["checks"])
    assert found["counts"]["problem"] == 0


def test_a_problem_exits_1() -> None:
    done = cli("doctor", "--json", "--only", "configuration", **{FLAG_NAME: "true"})
    found = answer(done)
    assert done.returncode == 1
    by_name = {checked["name"]: checked for checked in found["checks"]}
    assert by_name["flag"]["findings"][0]["level"] == "problem"
    # What needs the decision is not passed over in silence.
    assert "'true'" in by_name["executor"]["left_out"]
    assert found["backend"] is None


def test_for_a_person() -> None:
    done = cli("doctor", "--only", "bundle-indices", "--tp", "4", VLLM_RAY_BUNDLE_INDICES="0,0")
    assert done.returncode == 1
    for word in ("PROBLEM", "bundle 0 more than once", "do: Name one bundle", "Found: 0 ok"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "reech"], ["Unknown check 'reech'", "Did you mean 'reach'"]),
        (["--log", "/no/such/file"], ["/no/such/file", "No such file"]),
        (["--log", "/"], ["Is a directory"]),
        (["--only", "log"], ["--log FILE"]),
        (["--only", "flag", "--log", "/etc/hostname"], ["--only leaves", "out"]),
    ],
)
def test_wrong_usage(arguments: list[str], words: list[str]) -> None:
    refused(cli("doctor", *arguments), 2, *words)


@pytest.mark.parametrize("arguments", [["--tp", "0"], ["--tp", "two"], ["--jsn"]])
def test_a_bad_option(arguments: list[str]) -> None:
    done = cli("doctor", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr


def test_a_cluster_that_was_asked_for_and_is_not_there() -> None:
    done = cli("doctor", "--json", "--address", "127.0.0.1:1", "--only", "nodes", "--only", "flag")
    found = answer(done)
    assert done.returncode == 3
    assert "Connection refused" in found["checks"][1]["left_out"]
    assert found["checks"][0]["findings"]
    # Named by the environment alone, and nothing else asked for: there is nothing to tell.
    done = cli("doctor", "--only", "nodes", RAY_ADDRESS="127.0.0.1:1")
    assert done.returncode == 3
    assert "nodes: nobody answers at the Ray address 127.0.0.1:1" in done.stdout


def test_a_log(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("fine\n" + BAD_LINE * 3 + "\x1b[31mRayChannelTimeoutError\x1b[0m\n")
    done = cli("doctor", "--json", "--only", "log", "--log", str(log))
    findings = answer(done)["checks"][0]["findings"]
    assert done.returncode == 1
    assert [(f["details"]["signature"], f["details"]["count"]) for f in findings] == [
        ("driver-without-device", 3),
        ("graph-time-out", 1),
    ]
    assert [f["details"]["line"] for f in findings] == [2, 5]
    done = cli("doctor", "--only", "log", "--log", str(log))
    assert f"{log}, line 2" in done.stdout
    assert "\x1b" not in done.stdout
    log.write_text("fine\n")
    assert cli("doctor", "--only", "log", "--log", str(log)).returncode == 0


def test_a_log_from_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ray_compat", "doctor", "--only", "log", "--log", "-"],
        input=BAD_LINE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "standard input, line 1" in done.stdout


WITHOUT = """
import importlib.metadata as m, importlib.util as u, sys
real_spec, real_version = u.find_spec, m.version
def find_spec(name, *rest):
    return None if name == {name!r} else real_spec(name, *rest)
def version(name):
    if name == {name!r}:
        raise m.PackageNotFoundError(name)
    return real_version(name)
u.find_spec, m.version = find_spec, version
sys.argv[1:] = {argv!r}
from vllm_ray_compat.cli import main
main()
"""


def without(name: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(name=name, argv=["doctor", "--json", *argv])],
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"},
        timeout=60,
    )


def test_without_vllm() -> None:
    found = answer(without("vllm", "--only", "configuration", "--only", "machine"))
    assert found["vllm"] is None
    left_out = {c["name"]: c["left_out"] for c in found["checks"] if c["left_out"]}
    assert set(left_out) == {"executor", "defects"}
    assert all("No vLLM is installed" in reason for reason in left_out.values())


def test_without_ray() -> None:
    done = without("ray", "--only", "cluster", "--only", "flag")
    found = answer(done)
    assert done.returncode == 0
    of_cluster = [c for c in found["checks"] if c["group"] == "cluster"]
    assert len(of_cluster) == len([c for c in CHECKS if c.group.value == "cluster"])
    assert {c["left_out"] for c in of_cluster} == {
        "Ray is not installed in this Python environment"
    }
    done = without("ray", "--only", "flag", "--only", "nodes", "--address", "127.0.0.1:1")
    assert done.returncode == 3
