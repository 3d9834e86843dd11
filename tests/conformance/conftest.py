"""One process an executor, started when a test first asks for it; its answers serve all tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.executors import TOPOLOGIES, Executor, installed
from tests.conformance.known_differences import known_difference
from tests.engine_fixtures import (
    environment_of_cases,
    nothing_left_behind,
    ray_environment,
    read_answers,
    tiny,
)
from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity.ownership import Segments, kill_all, session_members, spawn
from vllm_ray_compat.vllm_api import find_vllm

__all__ = ["nothing_left_behind", "ray_environment", "tiny"]

HERE = Path(__file__).parent

#: The repairs to run with are those of the shell: ``RAYCOMPAT_REPAIRS=none`` tests vLLM's
#: executors as they are. Taken now, because each test starts with a clean environment.
REPAIRS = {k: v for k, v in os.environ.items() if k == "RAYCOMPAT_REPAIRS"}

#: Seconds for all cases of an executor; each has a limit of its own, which says more.
RUN_S = 1800

OWN_CASES = ("killed_busy", "bad_weights", "dies_at_start")

EXECUTORS = installed()
ON_RAY = [executor for executor in EXECUTORS if executor.uses_ray]

Answers = dict[str, dict[str, Any]]


class Found:
    """What was seen of one executor."""

    def __init__(self, executor: Executor, answers: Answers, output: str) -> None:
        self.executor = executor
        self._answers = answers
        self._output = output

    def __getitem__(self, case: str) -> dict[str, Any]:
        if case in TOPOLOGIES and case not in self.executor.topologies:
            pytest.skip(f"{self.executor} is not asked on {case} in this run")
        if case not in self._answers:
            pytest.fail(f"{self.executor}: the case {case} did not end.\n{self._output[-6000:]}")
        return self._answers[case]

    @property
    def repairs(self) -> list[str]:
        return list(self["tp2"]["repairs"])


def cases_of(executor: Executor) -> list[str]:
    return [*executor.topologies, *(OWN_CASES if executor.is_ours else ())]


@pytest.fixture(scope="module")
def base_environment() -> dict[str, str]:
    return environment_of_cases(environment.base_environment(os.environ, cpu=True), **REPAIRS)


@pytest.fixture(scope="module")
def devices() -> int:
    """Enough for tp2pp2."""
    return 4


@pytest.fixture(scope="module")
def run(
    tiny: Path,
    base_environment: dict[str, str],
    ray_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Executor], Found]:
    """Return a function that runs the cases of an executor, once."""
    known: dict[str, Found] = {}

    def go(executor: Executor) -> Found:
        if str(executor) not in known:
            log = tmp_path_factory.mktemp("cases") / f"{executor}.log"
            environ = {**base_environment, **executor.environ}
            if executor.uses_ray:
                environ |= ray_environment
            known[str(executor)] = Found(executor, *_answers(executor, str(tiny), environ, log))
        return known[str(executor)]

    return go


def _answers(
    executor: Executor, model: str, environ: dict[str, str], log: Path
) -> tuple[Answers, str]:
    segments = Segments()
    process = spawn(
        "executor_cases",
        *(model, executor.asked_as, *cases_of(executor)),
        log=log,
        environ=environ,
    )
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=RUN_S)
    finally:
        members = session_members(process.pid)
        segments.note(members)
        kill_all(members, grace_s=1)
        segments.free()
        process.wait()
    output = log.read_text(encoding="utf-8", errors="replace")
    print(output[-20000:])
    return {one["case"]: one for one in read_answers(output)}, output


def _found(request: pytest.FixtureRequest, run: Callable[[Executor], Found]) -> Found:
    executor: Executor = request.param
    found = run(executor)
    if not executor.is_ours:
        params = getattr(request.node, "callspec").params  # noqa: B009 (items that have it)
        known = known_difference(
            executor.backend,
            request.node.originalname,
            params.get("case"),
            find_vllm().version,
            found.repairs,
        )
        if known is not None:
            # Not for what else may go wrong, such as a case that did not end.
            request.applymarker(
                pytest.mark.xfail(reason=str(known), raises=AssertionError, strict=True)
            )
    return found


@pytest.fixture(params=EXECUTORS, ids=str)
def found(request: pytest.FixtureRequest, run: Callable[[Executor], Found]) -> Found:
    """Every executor."""
    return _found(request, run)


@pytest.fixture(params=ON_RAY, ids=str)
def on_ray(request: pytest.FixtureRequest, run: Callable[[Executor], Found]) -> Found:
    """Every executor with placement."""
    return _found(request, run)


@pytest.fixture(params=[executor for executor in EXECUTORS if executor.is_ours], ids=str)
def own(request: pytest.FixtureRequest, run: Callable[[Executor], Found]) -> Found:
    """This package's executors."""
    return _found(request, run)
