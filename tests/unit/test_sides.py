"""Executors in this Python environment and in another: what is asked, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_ray_compat.errors import EXIT_ENVIRONMENT, EXIT_USAGE, RaycompatError
from vllm_ray_compat.parity import sides
from vllm_ray_compat.parity.capture import SCHEMA


def interpreter(folder: Path, script: str) -> str:
    path = folder / "python-of-another"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def answer(**changes: object) -> str:
    told = {
        "schema": SCHEMA,
        "backend": "v2",
        "executor": "some.module:RayExecutorV2",
        "vllm": "0.33.0",
        "is_cpu_build": True,
        "python": None,
        **changes,
    }
    return f"cat <<'END'\n{json.dumps(told)}\nEND"


def test_another_environment_is_asked(tmp_path: Path) -> None:
    python = interpreter(tmp_path, answer())
    side = sides.resolve(f"v2@{python}")
    assert (side.name, side.python, side.platform) == ("v2@0.33.0", python, "cpu")
    assert side.executor == "some.module:RayExecutorV2"


def test_the_real_question_is_understood(
    fake_vllm: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other end is this very module, in an interpreter with another vLLM on its path."""
    fake = fake_vllm(version="0.21.0")
    monkeypatch.setenv("PYTHONPATH", str(fake.root))
    side = sides.resolve(f"mp@{sys.executable}")
    assert (side.name, side.vllm) == ("mp@0.21.0", "0.21.0")
    assert side.executor == sides.MP_EXECUTOR


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("exit 1", EXIT_ENVIRONMENT, "cannot run an arm (exit code 1). Install this package there"),
        ("echo 'No module named x' >&2; exit 1", EXIT_ENVIRONMENT, "(No module named x)"),
        ("echo hello", EXIT_ENVIRONMENT, "cannot run an arm"),
        ('echo \'{"error": "No vLLM is installed"}\'; exit 3', EXIT_ENVIRONMENT, "No vLLM is"),
        ('echo \'{"error": "Unknown backend"}\'; exit 2', EXIT_USAGE, "Unknown backend"),
        (answer(schema="vllm_ray_compat.capture/99"), EXIT_ENVIRONMENT, "Install the same version"),
    ],
)
def test_an_environment_that_cannot_run_an_arm(
    tmp_path: Path, script: str, code: int, said: str
) -> None:
    with pytest.raises(RaycompatError) as caught:
        sides.resolve(f"v2@{interpreter(tmp_path, script)}")
    assert caught.value.exit_code == code
    assert said in str(caught.value)


@pytest.mark.parametrize("python", ["", "/no/such/python", "no-such-command-anywhere"])
def test_no_interpreter(python: str) -> None:
    with pytest.raises(RaycompatError, match="there is no interpreter") as caught:
        sides.resolve(f"legacy@{python}")
    assert caught.value.exit_code == EXIT_USAGE


def test_no_such_backend() -> None:
    with pytest.raises(RaycompatError, match="Did you mean 'legacy'"):
        sides.resolve("legcay@/usr/bin/python3")


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("legacy", "legacy"),
        ("mp", "mp"),
        ("vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor", "legacy"),
        ("vllm.v1.executor.ray_executor_v2:RayExecutorV2", "v2"),
        ("vllm.v1.executor.multiproc_executor:MultiprocExecutor", "mp"),
        ("mine:Executor", "mine:Executor"),
    ],
)
def test_a_class_is_known_as_the_backend_that_it_is(backend: str, kind: str) -> None:
    assert sides.Side(backend, backend, "0.32.0", True).kind == kind
