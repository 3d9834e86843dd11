"""The parity run of the migration guide, on real engines, and everything that can go wrong in it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.documents import commands_of
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.compare import FIELDS
from vllm_ray_compat.parity.faults import FAULTS
from vllm_ray_compat.parity.faults.harmless import KINDS as HARMLESS
from vllm_ray_compat.parity.ownership import session_members
from vllm_ray_compat.parity.selftest import selftest
from vllm_ray_compat.schedule import COMPAT_EXECUTORS, Backend

RunUntil = Callable[[str, Path], subprocess.Popen[str]]

CLI = [sys.executable, "-m", "vllm_ray_compat"]
#: One worker starts sooner than two on two cores, and these tests are of the run.
MP_ONLY = ["parity", "run", "--topology", "tp1", "--reference", "mp", "--candidate", "mp"]


def finish(
    command: list[str], timeout: float = 600, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environ},
        timeout=timeout,
    )


@pytest.fixture(scope="module")
def guide_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The command of the migration guide, run once for all tests of it."""
    (command,) = [c for c in commands_of("migration_guide.md") if "parity run" in c]
    words = shlex.split(command)
    assert words[0] == "vllm-ray-compat"
    folder = tmp_path_factory.mktemp("parity") / "report"
    words[words.index("--report-dir") + 1] = str(folder)
    return finish([*CLI, *words[1:]], **{FLAG_NAME: "true", "RAYCOMPAT_STRICT": "1"}), folder


def test_it_passes(guide_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """The flag and the settings of the shell (set by the fixture, and wrong) do not reach the arms."""
    done, _ = guide_run
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: PASS" in done.stdout
    assert "Traceback" not in done.stderr


def test_progress_is_plain_lines_off_a_terminal(
    guide_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = guide_run
    for text in (
        "Ray cluster: started",
        "tp2-reference-legacy: starting the engine",
        "pp2-candidate-v2: workload greedy",
        "pp2-candidate-mp: done in",
    ):
        assert text in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_the_report_says_what_ran(guide_run: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = guide_run
    report = json.loads((folder / "report.json").read_text())
    assert report["schema"] == "vllm_ray_compat.report/2"
    assert report["verdict"] == "pass"
    ran = {(a["topology"], a["role"], a["backend"]): a["executor"] for a in report["arms"]}
    executors = {
        "legacy": "vllm_ray_compat.executors.repaired:RayDistributedExecutor",
        "v2": "vllm_ray_compat.executors.repaired:RayExecutorV2",
        "mp": "vllm.v1.executor.multiproc_executor:MultiprocExecutor",
    }
    assert ran == {
        (topology, role, backend): executors[backend]
        for topology in ("tp2", "pp2")
        for role, backend in [
            ("reference", "legacy"),
            ("reference-again", "legacy"),
            ("candidate", "v2"),
            ("candidate", "mp"),
        ]
    }
    for arm in report["arms"]:
        assert arm["provider"] == "vllm"
        assert bool(arm["repairs"]) is (arm["backend"] != "mp")
        assert (arm["vllm"], arm["dtype"], arm["async_scheduling"]) == ("0.32.0", "float32", False)
        assert [w["rank"] for w in arm["workers"]] == [0, 1]
        assert arm["timings"]["engine_start_s"] > 0
        assert set(arm["timings"]["workloads_s"]) == {
            "greedy",
            "logprobs",
            "seeded",
            "mixed-lengths",
            "stop",
        }
    assert [f["differences"] for f in report["noise_floor"]] == [[], []]
    assert {c["field"] for c in report["comparisons"]} == set(FIELDS)
    assert {c["result"] for c in report["comparisons"]} == {"equal"}
    assert len(report["comparisons"]) == 4 * 21 * len(FIELDS)
    assert report["left_behind"] == []


def test_settings_reach_the_workers_of_both_executors(
    guide_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, folder = guide_run
    for backend, flag in (("legacy", "0"), ("v2", "1")):
        role = "reference" if backend == "legacy" else "candidate"
        engine = cap.read_capture(folder / f"tp2-{role}-{backend}.jsonl").engine
        assert engine is not None
        for worker in engine.workers:
            settings = dict(worker.settings)
            # Where workers are repaired, too, each is told what its driver repairs.
            names = ",".join(engine.repairs or ())
            assert settings.pop("RAYCOMPAT_REPAIRS", names) == names
            assert settings == {"RAYCOMPAT_CPU": "1", FLAG_NAME: flag}
            assert worker.devices == {"GPU": [str(worker.rank)]}
            assert worker.worker_class == "vllm_ray_compat.platforms.cpu_worker:RayCpuWorker"


def test_the_workloads_do_what_they_say(
    guide_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, folder = guide_run
    capture = cap.read_capture(folder / "tp2-candidate-v2.jsonl")
    results = {(r.workload, r.request): r for r in capture.results}

    def first(workload: str, request: str) -> cap.Output:
        return results[workload, request].outputs[0]

    top5 = results["logprobs", "top5"]
    assert all(5 <= len(entries or []) <= 6 for entries in top5.outputs[0].logprobs or [])
    assert top5.prompt_logprobs is not None
    assert top5.prompt_logprobs[0] is None
    assert len(top5.prompt_logprobs) == len(top5.prompt_token_ids or [])
    assert first("seeded", "t1").token_ids != first("seeded", "t1-other-seed").token_ids
    assert (first("stop", "string").finish_reason, first("stop", "string").stop_reason) == (
        "stop",
        "e",
    )
    assert first("stop", "string-kept").text.endswith("o")
    assert first("stop", "length").finish_reason == "length"
    assert isinstance(first("stop", "token-id").stop_reason, int)
    assert results["mixed-lengths", "shared-prefix"].num_cached_tokens == 128


def test_every_fault_in_real_captures_is_found_and_nothing_else(
    guide_run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, folder = guide_run
    found = selftest(folder, runs=50, positions=1)
    assert found.missed == []
    assert found.false_alarms == []
    assert found.real_runs > 0
    assert set(found.kinds) == set(FAULTS) - {kind.name for kind in HARMLESS}


def test_a_fault_through_the_command_line(tmp_path: Path) -> None:
    done = finish([*CLI, *MP_ONLY, "--inject-fault", "token", "--report-dir", str(tmp_path / "r")])
    assert done.returncode == 1, done.stderr
    assert "workload greedy, request sentence: token_ids at position 16" in done.stdout
    assert "Fault injected on purpose" in done.stdout
    assert "Verdict: FAIL" in done.stdout
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert report["injected_fault"]["kind"] == "token"
    assert report["verdict"] == "fail"
    # The token was changed in the capture, not in the engine: along the reference's tokens every
    # one is its own first choice.
    greedy = {one["request"]: one for one in report["forced"] if one["workload"] == "greedy"}
    assert set(greedy) == {"sentence", "numbers", "utf8", "one-token-prompt"}
    assert all(one["agreed"] == one["positions"] > 0 for one in greedy.values())


def test_the_production_engine_core(tmp_path: Path) -> None:
    """EngineCore in its own process: the class is told by who hosts the workers."""
    done = finish(
        [
            *CLI,
            "parity",
            "run",
            "--topology",
            "tp2",
            "--reference",
            "v2",
            "--candidate",
            "mp",
            "--engine-core",
            "process",
            "--bundle-indices",
            "1,0",
            "--report-dir",
            str(tmp_path / "r"),
            "--json",
        ]
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    workers = [[w["bundle"] for w in arm["workers"]] for arm in report["arms"]]
    assert workers == [[1, 0], [None, None], [1, 0]]
    assert {a["executor_read_from"] for a in report["arms"]} == {"workers"}
    assert [a["executor"].rpartition(":")[2] for a in report["arms"]] == [
        "RayExecutorV2",
        "MultiprocExecutor",
        "RayExecutorV2",
    ]


def test_our_legacy_executor_against_vllms(tmp_path: Path) -> None:
    """An arm may name its executor class: the one for vLLM ≥ 0.33 beside the one it replaces."""
    ours = COMPAT_EXECUTORS[Backend.LEGACY]
    done = finish(
        [
            *CLI,
            "parity",
            "run",
            "--topology",
            "pp2",
            "--reference",
            "legacy",
            "--candidate",
            ours,
            "--report-dir",
            str(tmp_path / "r"),
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert [a["executor"] for a in report["arms"]][1] == ours
    assert [a["provider"] for a in report["arms"]] == ["vllm", "vllm_ray_compat", "vllm"]


def test_an_engine_that_cannot_start(tmp_path: Path, tiny: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    (model / "model.safetensors").write_bytes(b"not weights")
    done = finish([*CLI, *MP_ONLY, "--model", str(model), "--report-dir", str(tmp_path / "r")])
    assert done.returncode == 1
    assert "engine-start" in done.stdout
    assert "The last lines of its log" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_hanging_arm(base_environment: dict[str, str], tmp_path: Path) -> None:
    """Two ranks on a cluster of one device, and the patience to wait for a second one."""
    with RayCluster(1, base_environment, tmp_path / "ray.log", fake_devices=True) as cluster:
        done = finish(
            [
                *CLI,
                "parity",
                "run",
                "--topology",
                "tp2",
                "--arm-timeout",
                "25",
                "--ray-address",
                cluster.address,
                "--report-dir",
                str(tmp_path / "r"),
            ],
            VLLM_HOST_IP=cluster.node_ip,
            # Unset, a group that these nodes can never hold ends the arm in 15 s: no hang at all.
            RAYCOMPAT_PLACEMENT_TIMEOUT_S="600",
            **cluster.credentials,
        )
    assert done.returncode == 1, done.stderr
    assert "hang: no end within 25 s (--arm-timeout)" in done.stdout
    assert "Thread 0x" in (tmp_path / "r" / "tp2-reference-legacy.log").read_text()


@pytest.fixture
def run_until() -> Iterator[RunUntil]:
    """Start a run and return it when it says a text; ended with the test, whatever happens."""
    started: list[subprocess.Popen[str]] = []

    def go(text: str, folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *CLI,
                *("parity", "run", "--topology", "tp1", "--reference", "v2", "--candidate", "v2"),
                *("--report-dir", str(folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if text in line:
                return process
        raise AssertionError(f"the run ended before {text!r}")

    yield go
    for process in started:
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(ValueError):  # its output was read to the end already
            process.communicate(timeout=60)


def test_an_interrupted_run_ends_everything(run_until: RunUntil, tmp_path: Path) -> None:
    """By Ctrl-C, with a real engine and Ray; each signal has its test with a made-up engine."""
    process = run_until("tp1-reference-v2: workload greedy", tmp_path / "r")
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("raylet" in " ".join(c.cmdline()) for c in children)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, out + err
    assert "Interrupted: every process of this run was ended" in err
    assert "Traceback" not in err
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    # What came before is kept.
    assert cap.read_capture(tmp_path / "r" / "tp1-reference-v2.jsonl").engine is not None


def test_a_killed_arm_is_reported_and_the_next_one_runs(
    run_until: RunUntil, tmp_path: Path
) -> None:
    process = run_until("tp1-reference-v2: starting the engine", tmp_path / "r")
    deadline = time.monotonic() + 30
    arms: list[psutil.Process] = []
    while not arms and time.monotonic() < deadline:
        arms = [
            c
            for c in psutil.Process(process.pid).children()
            if "vllm_ray_compat.parity.arm" in c.cmdline()
        ]
        time.sleep(0.1)
    (arm,) = arms
    time.sleep(8)  # in the middle of the start: its workers exist
    arm.kill()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1, out + err
    assert "crash: killed by SIGKILL" in out
    assert "tp1-candidate-v2: done in" in err
    assert session_members(arm.pid) == []
    assert (tmp_path / "r" / "ray-logs").is_dir(), "kept, because an arm failed"
