"""What the tests of Ray Serve and Ray Data share: which cases run, and vLLM's answers without Ray."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixtures import read_answers
from vllm_ray_compat.parity.ownership import kill_all, session_members

HERE = Path(__file__).parent

#: Taken now, as each test starts with a clean environment.
CHOSEN = os.environ.get("PLACEMENT", "quick")


def chosen(quick: Sequence[str], full: Sequence[str]) -> list[str]:
    """Return the cases to run: ``PLACEMENT`` is ``quick``, ``full`` or names of cases."""
    if CHOSEN == "quick":
        return list(quick)
    return [case for case in full if CHOSEN == "full" or case in CHOSEN.split(",")]


def parametrized(cases: Sequence[str], to_run: Sequence[str]) -> Any:
    """Return the mark that gives a test its *cases*; those that are not run say how they are."""
    left_out = pytest.mark.skip(reason="PLACEMENT=full runs it (scripts/test.sh)")
    return pytest.mark.parametrize(
        "case", [pytest.param(c, marks=[] if c in to_run else [left_out]) for c in cases]
    )


def with_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* with what replicas and workers import; Ray must be started with it."""
    return {**environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent / "conformance")])}


def run(
    script: str, arguments: Sequence[str], environ: Mapping[str, str], limit_s: float
) -> tuple[dict[str, dict[str, Any]], str]:
    """Run a script of cases; returns what each has answered, and all it has printed."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        members = session_members(process.pid)
        kill_all(members, grace_s=2)
        output, _ = process.communicate()
        output += f"\nended after {limit_s:.0f} s"
    return {answer["case"]: answer for answer in read_answers(output)}, output


@functools.cache
def offline(model: Path, environ: tuple[tuple[str, str], ...]) -> list[list[int]]:
    """Return the tokens of ``vllm.LLM`` with one worker, which is asked once."""
    one_process = {**dict(environ), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    answers, output = run("offline_cases.py", [str(model)], one_process, 300)
    assert "offline" in answers, output[-4000:]
    tokens: list[list[int]] = answers["offline"]["tokens"]
    assert all(len(set(answer)) > 1 for answer in tokens), "they could not tell engines apart"
    return tokens
