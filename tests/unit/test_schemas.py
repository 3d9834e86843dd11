"""The published JSON Schemas hold for what is really written, and for nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from tests.documents import ROOT
from vllm_ray_compat.cli.app import app
from vllm_ray_compat.parity.capture import CaptureWriter, Phase
from vllm_ray_compat.parity.cross import compare_captures
from vllm_ray_compat.parity.faults import inject, write_capture
from vllm_ray_compat.parity.schemas import SCHEMAS, schema_of
from vllm_ray_compat.parity.selftest import selftest
from vllm_ray_compat.parity.synthetic import synthetic_capture
from vllm_ray_compat.parity.workloads import suite_names

SUITES = ROOT / "src" / "vllm_ray_compat" / "parity" / "workloads"


def check(name: str, instance: Any) -> None:
    Draft202012Validator(schema_of(name)).validate(instance)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_ones_are_fresh_and_well_formed(name: str) -> None:
    published = json.loads((ROOT / "schemas" / f"{name}.json").read_text())
    assert published == schema_of(name), "run: python scripts/docs.py"
    Draft202012Validator.check_schema(published)


def test_every_line_of_a_capture(tmp_path: Path) -> None:
    write_capture(synthetic_capture(), tmp_path / "a.jsonl")
    with CaptureWriter(tmp_path / "b.jsonl") as out:
        out.write(synthetic_capture().header)
        out.write(Phase(name="engine", at=1.0))
    for name in ("a.jsonl", "b.jsonl"):
        for line in (tmp_path / name).read_text(encoding="utf-8").split("\n")[:-1]:
            check("capture", json.loads(line))


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_of_the_package(name: str) -> None:
    check("suite", json.loads((SUITES / f"{name}.json").read_text(encoding="utf-8")))


def test_a_report(tmp_path: Path) -> None:
    write_capture(synthetic_capture(), tmp_path / "a.jsonl")
    for kind in ("token", "missing", "device", "seed"):
        write_capture(inject(synthetic_capture(), kind)[0], tmp_path / "b.jsonl")
        found = compare_captures(
            tmp_path / "a.jsonl", tmp_path / "b.jsonl", tolerances=["auto"]
        ).to_json()
        check("report", json.loads(json.dumps(found)))


def test_a_self_test() -> None:
    check("selftest", selftest(runs=1, positions=1).model_dump(mode="json", by_alias=True))


@pytest.mark.parametrize(
    ("name", "instance"),
    [
        ("capture", {"kind": "result", "workload": "w"}),
        ("capture", {"kind": "header", "schema": "vllm_ray_compat.capture/9"}),
        ("suite", {"schema": "vllm_ray_compat.suite/1", "name": "s", "workloads": []}),
        ("suite", {"schema": "vllm_ray_compat.suite/9", "name": "s"}),
        ("report", {"schema": "vllm_ray_compat.report/9"}),
    ],
)
def test_what_is_none_is_refused(name: str, instance: Any) -> None:
    assert not Draft202012Validator(schema_of(name)).is_valid(instance)


def test_the_command() -> None:
    for name in SCHEMAS:
        done = CliRunner().invoke(app, ["parity", "schema", name])
        assert json.loads(done.stdout) == schema_of(name)
