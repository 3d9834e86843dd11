"""``vllm serve --distributed-executor-backend ray`` on the CPU, over HTTP, with each backend."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from tests.documents import commands_of
from vllm_ray_compat.names import FLAG_NAME

from .conftest import Server

START_S = 180


def arguments_of_the_guide(model: Path) -> list[str]:
    """Return what the migration guide's command gives to ``vllm serve``, with *model* for MODEL."""
    (command,) = [c for c in commands_of("migration_guide.md") if "vllm serve" in c]
    assert command.startswith(f"{FLAG_NAME}=1 vllm serve MODEL ")
    return [str(model), *command.partition(" MODEL ")[2].split()]


def _post(url: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, object] = json.load(response)
        return answer


def _wait(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        server.note()
        assert server.process.poll() is None, server.text()[-3000:]
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=2).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"no answer within {START_S} s: {server.text()[-3000:]}")


ANSWERS: dict[str, object] = {}


@pytest.mark.parametrize(
    ("flag", "backend", "class_name"),
    [("0", "legacy", "RayDistributedExecutor"), (None, "v2", "RayExecutorV2")],
)
def test_a_completion_over_http(
    ray_environment: dict[str, str],
    base_environment: dict[str, str],
    tiny: Path,
    tmp_path: Path,
    flag: str | None,
    backend: str,
    class_name: str,
) -> None:
    environ = {**base_environment, **ray_environment}
    if flag is not None:
        environ[FLAG_NAME] = flag
    server = Server(
        [
            *arguments_of_the_guide(tiny),
            *("--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"),
            *("--max-model-len", "256", "--max-num-seqs", "4"),
        ],
        environ,
        tmp_path / "serve.log",
    )
    try:
        _wait(server)
        body = {"model": "tiny", "prompt": "A placement group", "max_tokens": 16, "temperature": 0}
        answer = _post(f"{server.url}/v1/completions", body)
        (choice,) = answer["choices"]  # type: ignore[misc]
        assert choice["finish_reason"] == "length"
        ANSWERS[backend] = choice["text"]
    finally:
        server.stop()
    lines = [line for line in server.text().splitlines() if "Ray executor backend" in line]
    assert len(lines) == 1, "one line an engine start"
    for word in (f"backend {backend}", class_name, "provider vllm", "phase 2"):
        assert word in lines[0]
    warned = "LegacyExecutorRemovedInVllm033Warning" in server.text()
    assert warned is (backend == "legacy")


def test_both_backends_answered_the_same() -> None:
    if len(ANSWERS) < 2:
        pytest.fail("a backend did not answer")
    assert ANSWERS["legacy"] == ANSWERS["v2"]


def test_an_invalid_flag_stops_the_server_with_our_error(
    ray_environment: dict[str, str], base_environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    server = Server(
        arguments_of_the_guide(tiny),
        {**base_environment, **ray_environment, FLAG_NAME: "true"},
        tmp_path / "serve.log",
    )
    try:
        assert server.process.wait(timeout=120) != 0
    finally:
        server.stop()
    assert f"{FLAG_NAME} has the invalid value 'true'" in server.text()
    assert "validation error for VllmConfig" not in server.text()
