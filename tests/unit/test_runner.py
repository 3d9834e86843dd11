"""The whole parity run, in the real command line, runner and arms; only the engine is made up.

It answers by formula, in milliseconds, and misbehaves on order: what must never be a PASS, what
must never be lost, and how a run ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

ENGINE = '''
"""A made-up engine. FAKE_ENGINE holds Python that may change it, once FAKE_ARM is running."""
import os, types

__version__ = "0.32.0"


class SamplingParams:
    def __init__(self, **kw):
        self.__dict__.update(kw)


class MultiprocExecutor:
    pass


MultiprocExecutor.__module__ = "vllm.v1.executor.multiproc_executor"
N = types.SimpleNamespace
config = N(
    model_config=N(dtype="torch.float32", enforce_eager=True),
    scheduler_config=N(async_scheduling=False),
    use_v2_model_runner=False,
)
workers = 2


def answer(index, prompt, params):
    ids = [(sum(prompt.encode()) + 7 * i + getattr(params, "seed", 0)) % 400 for i in range(8)]
    entry = N(logprob=-0.5, rank=1)
    logprobs = [{i: entry} for i in ids] if hasattr(params, "logprobs") else None
    return N(
        outputs=[
            N(index=0, token_ids=ids, text=str(ids), finish_reason="length", stop_reason=None,
              cumulative_logprob=-4.0, logprobs=logprobs)
        ],
        prompt_token_ids=list(prompt.encode()),
        prompt_logprobs=None,
        num_cached_tokens=0,
    )


def before_generate():
    pass


class Engine:
    """Answers all requests of a batch in one step."""

    vllm_config = config

    def __init__(self):
        self.waiting = []

    def add_request(self, request_id, prompt, params):
        self.waiting.append((request_id, prompt, params))

    def step(self):
        before_generate()
        batch, self.waiting = self.waiting, []
        outputs = []
        for index, (request_id, prompt, params) in enumerate(batch):
            output = answer(index, prompt, params)
            output.request_id, output.finished = request_id, True
            outputs.append(output)
        return outputs


class LLM:
    def __init__(self, **kw):
        self.kw = kw
        core = N(model_executor=MultiprocExecutor())
        self.llm_engine = Engine()
        self.llm_engine.engine_core = N(engine_core=core, shutdown=lambda: None)

    def collective_rpc(self, method):
        return [
            dict(rank=r, local_rank=r, pid=os.getpid(), node_ip="local", worker_class="a:B")
            for r in range(workers)
        ]



class Role:
    """Which arm this is, from the name of its spec file."""
    import sys
    name = sys.argv[-1]
    reference = "-reference-" in name
    again = "-reference-again-" in name
    candidate = "-candidate-" in name


exec(os.environ.get("FAKE_ENGINE", ""))
'''

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environ(fake_vllm: Callable, tmp_path: Path) -> dict[str, str]:
    fake = fake_vllm(version="0.32.0")
    fake.write("__init__.py", ENGINE)
    (fake.root / "torch.py").write_text('__version__ = "2.13.0"\n')
    return {
        **os.environ,
        "PYTHONPATH": str(fake.root),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(tmp_path / "cache")),
    }


def command(report: Path | str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "vllm_ray_compat", "parity", "run", "--topology", "tp2"),
        *("--reference", "mp", "--candidate", "mp", "--report-dir", str(report), *more),
    ]


@pytest.fixture
def cli(environ: dict[str, str], tmp_path: Path) -> Cli:
    def run(*more: str, engine: str = "", report: Path | None = None, **extra: Any) -> Any:
        return subprocess.run(
            command(report or tmp_path / "report", *more),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=100,
            env={**environ, "FAKE_ENGINE": textwrap.dedent(engine), **extra.pop("env", {})},
            **extra,
        )

    return run


def read(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return report


def test_equal_arms_pass(cli: Cli, tmp_path: Path) -> None:
    done = cli()
    assert done.returncode == 0, done.stderr
    assert "Verdict: PASS" in done.stdout
    report = read(tmp_path / "report")
    assert (report["verdict"], len(report["arms"])) == ("pass", 3)
    assert f"Report: {tmp_path / 'report' / 'report.html'}" in done.stdout
    for name in ("report.md", "report.html", "junit.xml"):
        assert (tmp_path / "report" / name).stat().st_size > 1000
    assert [w["name"] for w in report["workloads"]][:2] == ["greedy", "logprobs"]
    assert {g["candidate"]: g["largest"] for g in report["logprob_gaps"]} == {
        "mp again": 0.0,
        "mp": 0.0,
    }


def suite_file(tmp_path: Path, unavailable: dict[str, str]) -> Path:
    """A suite of two workloads, the second of which says where it cannot run."""
    request = {"id": "r", "prompt": {"text": "Go"}, "sampling": {"max_tokens": 8}}
    workloads = [
        {"name": "plain", "about": "", "requests": [request]},
        {"name": "special", "about": "", "profile": "own", "requests": [request]},
    ]
    reason = {"why": "it has no kernel for it", "source": "vLLM's documentation"}
    profiles = {"own": {"about": "", "unavailable": [{**reason, **unavailable}]}}
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {
                "schema": "vllm_ray_compat.suite/1",
                "name": "mine",
                "profiles": profiles,
                "workloads": workloads,
            }
        )
    )
    return path


def test_what_the_platform_cannot_run_is_told_and_costs_no_arm(cli: Cli, tmp_path: Path) -> None:
    done = cli("--suite", str(suite_file(tmp_path, {"on": "cuda"})))
    assert done.returncode == 0, done.stdout + done.stderr
    why = "cuda cannot run it: it has no kernel for it (vLLM's documentation)"
    assert f"Not run: workload special (1 requests): {why}." in done.stdout
    report = read(tmp_path / "report")
    assert [w["name"] for w in report["workloads"]] == ["plain"]
    assert {arm["profile"] for arm in report["arms"]} == {"default"}
    (one,) = report["not_run"]
    assert (one["workload"], one["requests"], one["platform"]) == ("special", 1, "cuda")
    assert report["topologies"][0]["not_run"] == ["special"]
    assert "1 of 2 workloads was not run" in (tmp_path / "report" / "report.md").read_text("utf-8")


@pytest.mark.parametrize(("backend", "profiles"), [("mp", ["default"]), ("v2", ["default", "own"])])
def test_what_a_backend_cannot_run_is_left_out_where_it_takes_part(
    cli: Cli, tmp_path: Path, backend: str, profiles: list[str]
) -> None:
    done = cli("--suite", str(suite_file(tmp_path, {"backend": backend, "vllm": ">=0.20"})))
    assert done.returncode == 0, done.stdout + done.stderr
    report = read(tmp_path / "report")
    assert sorted({arm["profile"] for arm in report["arms"]}) == profiles
    left_out = [] if "own" in profiles else ["special"]
    assert [one["workload"] for one in report["not_run"]] == left_out
    told = (
        "Known difference: mp cannot run workload special: it has no kernel for it; workload "
        "special was not run (vLLM's documentation)."
    )
    assert (told in done.stdout) == bool(left_out)
    known = [k for k in report["known_differences"] if k["workload"] == "special"]
    assert [k["backend"] for k in known] == ["mp"] * len(left_out)


def test_json_is_one_object_and_nothing_else(cli: Cli) -> None:
    assert json.loads(cli("--json").stdout)["schema"] == "vllm_ray_compat.report/2"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("token", "workload greedy, request sentence: token_ids at position 4"),
        ("logprob", "workload logprobs, request top5: logprobs at position 7"),
        ("order", "workload greedy, request sentence: order at position 0"),
        ("finish", "workload greedy, request sentence: finish_reason: 'length' became 'stop'"),
        ("missing", "workload seeded, request top-k: missing from mp at position 3"),
    ],
)
def test_each_fault_exits_1_and_names_workload_request_and_position(
    cli: Cli, tmp_path: Path, kind: str, words: str
) -> None:
    done = cli("--inject-fault", kind)
    assert done.returncode == 1, done.stdout + done.stderr
    assert words in done.stdout
    fault = read(tmp_path / "report")["injected_fault"]
    assert (fault["kind"], fault["workload"] in words, fault["request"] in words) == (
        kind,
        True,
        True,
    )


def test_a_harmless_change_passes(cli: Cli, tmp_path: Path) -> None:
    done = cli("--inject-fault", "key-order")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the verdict has to be PASS, as it is harmless" in done.stdout
    report = read(tmp_path / "report")
    assert report["topologies"][0]["statistics"]["noise_runs"] == 2
    assert sum(total["equal"] for total in report["totals"]) == len(report["comparisons"])


def test_a_tolerance_is_declared_or_there_is_none(cli: Cli, tmp_path: Path) -> None:
    done = cli("--inject-fault", "logprob", "--tolerance", "logprobs=0.01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tolerance of logprobs in all workloads: 0.01 absolute" in done.stdout
    assert read(tmp_path / "report")["topologies"][0]["within_tolerance"] == 1
    assert cli("--tolerance", "logprobs").returncode == 2


def test_a_candidate_that_differs_fails(cli: Cli) -> None:
    done = cli(
        engine="""
        if Role.candidate:
            _a = answer
            def answer(i, p, s):
                r = _a(i, p, s)
                r.outputs[0].token_ids[3] += 1
                return r
        """
    )
    assert done.returncode == 1
    assert "token_ids at position 3" in done.stdout


def test_a_reference_that_differs_from_itself_is_inconclusive(cli: Cli, tmp_path: Path) -> None:
    engine = """
        if Role.again:
            _a = answer
            def answer(i, p, s):
                r = _a(i, p, s)
                r.outputs[0].text += "!"
                return r
        """
    done = cli(engine=engine)
    assert done.returncode == 1
    assert read(tmp_path / "report")["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("if Role.candidate: config.model_config.dtype = 'torch.bfloat16'", "dtype bfloat16 where"),
        (
            "if Role.candidate: config.scheduler_config.async_scheduling = True",
            "async_scheduling True",
        ),
        ("if Role.candidate: workers = 1", "1 workers instead of 2"),
        ("if Role.candidate: __version__ = '0.19.1'", "vLLM 0.19.1 instead of 0.32.0"),
        ("if Role.candidate: config.use_v2_model_runner = True", "v2_model_runner True"),
    ],
)
def test_arms_that_ran_different_things_are_not_compared(cli: Cli, engine: str, words: str) -> None:
    done = cli(engine=engine)
    assert done.returncode == 1
    assert "not comparable: it ran with" in done.stdout
    assert words in done.stdout


def test_another_executor_than_asked_for(cli: Cli) -> None:
    done = cli(engine="MultiprocExecutor.__module__ = 'somewhere.else'")
    assert done.returncode == 1
    assert "wrong-executor: the mp arm was to run" in done.stdout


def test_a_topology_that_could_not_run_is_inconclusive_not_left_out(
    cli: Cli, tmp_path: Path
) -> None:
    engine = """
        if Role.name.startswith("pp2-") or "/pp2-" in Role.name:
            raise ImportError("no kernels for this machine")
        """
    done = cli("--topology", "pp2", engine=engine)
    assert done.returncode == 3, done.stdout + done.stderr
    report = read(tmp_path / "report")
    assert report["verdict"] == "inconclusive"
    verdicts = {v["topology"]: (v["verdict"], v["requests"]) for v in report["topologies"]}
    assert verdicts["tp2"][0] == "pass"
    assert verdicts["pp2"] == ("inconclusive", 0)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "pp2: mp against mp: not compared." in page
    assert "no kernels for this machine" in page


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("r.outputs[0].finish_reason = 'abort'", "ended with finish reason 'abort'"),
        ("r.outputs[0].cumulative_logprob = float('nan')", "has logprobs that are nan"),
    ],
)
def test_engines_that_answer_nothing_do_not_agree(cli: Cli, change: str, words: str) -> None:
    engine = f"_a = answer\ndef answer(i, p, s):\n    r = _a(i, p, s)\n    {change}\n    return r\n"
    done = cli(engine=engine)
    assert done.returncode == 1
    assert words in done.stdout


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            "import atexit, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGSEGV))",
            "crash: killed by SIGSEGV after the end of the suite",
        ),
        ("import atexit; atexit.register(lambda: os._exit(7))", "crash: exit code 7 after the end"),
        ("def before_generate(): os.kill(os.getpid(), 40)", "crash: killed by signal 40 before"),
    ],
)
def test_a_crash_at_any_time_is_a_failure(cli: Cli, engine: str, words: str) -> None:
    done = cli(engine=engine)
    assert done.returncode == 1
    assert words in done.stdout


def test_a_hang_at_exit_is_a_failure(cli: Cli, tmp_path: Path) -> None:
    engine = "import atexit, time\nif Role.candidate: atexit.register(time.sleep, 300)"
    done = cli("--arm-timeout", "60", engine=engine)
    assert done.returncode == 1
    assert "hang: still there 12 s after the end of the suite (a fifth of --" in done.stdout


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"oops\n", b'{"kind": "end"'])
def test_a_damaged_capture_is_that_arms_failure_and_the_others_run(
    cli: Cli, tmp_path: Path, damage: bytes
) -> None:
    engine = f"""
        from vllm_ray_compat.parity.capture import CaptureWriter
        _write = CaptureWriter.write
        def write(self, record):
            _write(self, record)
            if record.kind == "engine" and Role.candidate:
                self._file.buffer.write({damage!r})
                self._file.buffer.flush()
        CaptureWriter.write = write
        """
    done = cli(engine=engine)
    assert done.returncode == 1, done.stderr
    assert "capture: " in done.stdout
    assert "Traceback" not in done.stderr
    assert len(read(tmp_path / "report")["arms"]) == 3


def test_a_crash_keeps_what_came_before(cli: Cli, tmp_path: Path) -> None:
    engine = """
        calls = []
        def before_generate():
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), 9)
        """
    cli(engine=engine)
    lines = (tmp_path / "report" / "tp2-candidate-mp.jsonl").read_text().splitlines()
    assert sum('"kind": "result"' in line for line in lines) == 7  # greedy and logprobs
    assert read(tmp_path / "report")["arms"][0]["executor"].endswith("MultiprocExecutor")


# -- the report folder ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.jsonl", "server.log", "report.json"])
def test_a_folder_with_other_files_is_refused_and_untouched(
    cli: Cli, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("precious")
    done = cli(report=folder)
    assert done.returncode == 2
    assert "holds files that are not of this tool" in done.stderr
    assert [p.name for p in folder.iterdir()] == [name]


def test_the_current_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    for text in ("", "."):
        done = cli("--report-dir", text, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert "Name a folder of its own" in done.stderr


def test_a_second_run_replaces_the_first_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    cli(engine="import atexit; atexit.register(lambda: os._exit(7))")
    (folder / "notes.txt").write_text("kept")
    (folder / "own.log").write_text("kept")
    assert (folder / "tp2-candidate-mp.log").exists()
    done = cli()
    assert done.returncode == 0, done.stderr
    assert (folder / "notes.txt").read_text() == (folder / "own.log").read_text() == "kept"


# -- endings -------------------------------------------------------------------------------------

SLEEPY = """
import subprocess, sys, time
def before_generate():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    open(os.environ["FAKE_PIDS"], "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def _start(environ: dict[str, str], tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    pids = tmp_path / "pids"
    process = subprocess.Popen(
        command(tmp_path / "report"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environ, "FAKE_ENGINE": SLEEPY, "FAKE_PIDS": str(pids)},
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if pids.exists() and len(text := pids.read_text().split()) == 2:
            return process, [int(pid) for pid in text]
        time.sleep(0.05)
    raise AssertionError("the arm did not get to its first workload")


def _gone(pids: list[int]) -> bool:
    return not any(
        psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_and_a_second_one_changes_nothing(
    environ: dict[str, str], tmp_path: Path, how: signal.Signals
) -> None:
    process, pids = _start(environ, tmp_path)
    process.send_signal(how)
    time.sleep(0.7)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + how
    assert "Interrupted: every process of this run was ended" in err
    assert "Traceback" not in err
    assert _gone(pids)


def test_a_killed_runner_takes_its_arm_with_it(environ: dict[str, str], tmp_path: Path) -> None:
    process, (arm, child) = _start(environ, tmp_path)
    try:
        process.kill()
        process.communicate(timeout=10)
        deadline = time.monotonic() + 10
        while not _gone([arm]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _gone([arm])
    finally:
        psutil.Process(child).kill()  # nobody is left to end what the engine spawned


def test_a_reader_that_has_gone_does_not_end_the_run(
    environ: dict[str, str], tmp_path: Path
) -> None:
    line = " ".join(command(tmp_path / "report"))
    subprocess.run(
        ["bash", "-c", f"{line} 2>&1 | head -1"], env=environ, capture_output=True, timeout=100
    )
    assert read(tmp_path / "report")["verdict"] == "pass"


# -- surroundings --------------------------------------------------------------------------------


def test_a_checkout_of_vllm_in_the_current_folder_is_not_imported(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "here" / "vllm").mkdir(parents=True)
    (tmp_path / "here" / "vllm" / "__init__.py").write_text("raise ImportError('unbuilt')")
    (tmp_path / "here" / "json.py").write_text("raise ImportError('not the one')")
    done = cli(cwd=tmp_path / "here", env={"PYTHONSAFEPATH": "1"})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["model", "tensor_parallel_size", "distributed_executor_backend"])
def test_reserved_engine_arguments(cli: Cli, name: str) -> None:
    done = cli("--engine-arg", f"{name}=2")
    assert done.returncode == 2
    assert f"--engine-arg {name} cannot be set" in done.stderr


def test_async_scheduling_that_is_asked_for_has_to_be(cli: Cli) -> None:
    """vLLM turns it off by itself where it cannot be, with a warning; then nothing is proved."""
    asked = ("--engine-arg", "async_scheduling=true")
    assert "it ran with async scheduling turned off" in cli(*asked).stdout
    with_it = "config.scheduler_config.async_scheduling = True"
    assert cli(*asked, engine=with_it).returncode == 0
    assert (
        "async scheduling turned on"
        in cli("--engine-arg", "async_scheduling=false", engine=with_it).stdout
    )


def test_legacy_has_no_async_scheduling(cli: Cli) -> None:
    done = cli(
        "--also",
        "vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor",
        "--engine-arg",
        "async_scheduling=true",
    )
    assert done.returncode == 2
    assert "RayLegacyExecutor has no async scheduling" in done.stderr


def test_bundles_of_an_arm_without_any(cli: Cli) -> None:
    done = cli("--bundle-indices", "mp:1,0")
    assert done.returncode == 2
    assert "mp has no placement group" in done.stderr


def test_force_color_does_not_turn_plain_lines_into_a_display(cli: Cli) -> None:
    done = cli(env={"FORCE_COLOR": "1"})
    assert "tp2-candidate-mp: workload greedy" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_misspelt_setting_is_reported(cli: Cli) -> None:
    assert "Did you mean 'RAYCOMPAT_STRICT'" in cli(env={"RAYCOMPAT_STRIKT": "1"}).stderr


def test_the_model_in_shared_memory_survives(cli: Cli, tmp_path: Path) -> None:
    from vllm_ray_compat.parity import tiny_model

    folder = Path("/dev/shm") / f"raycompat-model-{os.getpid()}"
    single = Path("/dev/shm") / f"raycompat-file-{os.getpid()}"
    folder.mkdir()
    try:
        tiny_model.write_tiny_model(folder)
        single.write_bytes(b"\0" * 4096)
        engine = f"""
            import mmap, time
            def before_generate():
                global kept
                files = [open({str(folder / "model.safetensors")!r}, "r+b"), open({str(single)!r}, "r+b")]
                kept = [mmap.mmap(f.fileno(), 0) for f in files]
                time.sleep(1.2)
            """
        done = cli("--model", str(folder), engine=engine)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (folder / "model.safetensors").exists()
        assert single.exists()
    finally:
        single.unlink(missing_ok=True)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def test_two_python_environments_in_one_run(cli: Cli, tmp_path: Path) -> None:
    done = cli("--candidate", f"mp@{sys.executable}", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [v["candidate"] for v in report["topologies"]] == ["mp@0.32.0"]
    assert (tmp_path / "report" / "tp2-candidate-mp@0.32.0.jsonl").is_file()


def record(environ: dict[str, str], folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "vllm_ray_compat", "parity", "record", "--backend", "mp"),
            *("--topology", "tp2", "--report-dir", str(folder), *more),
        ],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_recording_says_what_it_left_out(environ: dict[str, str], tmp_path: Path) -> None:
    suite = suite_file(tmp_path, {"backend": "mp"})
    done = record(environ, tmp_path / "kept", "--suite", str(suite))
    assert done.returncode == 0, done.stderr
    assert (
        "workload special: not run, known difference: mp cannot run it: it has no kernel for it "
        "(vLLM's documentation)"
    ) in done.stdout
    (capture,) = (tmp_path / "kept").glob("*.jsonl")
    header = json.loads(capture.read_text().partition("\n")[0])
    assert [(one["workload"], one["backend"]) for one in header["not_run"]] == [("special", "mp")]


def test_one_executor_can_be_recorded(environ: dict[str, str], tmp_path: Path) -> None:
    traffic = tmp_path / "traffic.jsonl"
    body = {"prompt": "Go", "max_tokens": 4}
    lines = [{"custom_id": f"c{n}", "url": "/v1/completions", "body": body} for n in range(3)]
    traffic.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = record(environ, tmp_path / "kept", "--requests", str(traffic))
    assert done.returncode == 0, done.stderr
    capture = tmp_path / "kept" / "tp2-reference-mp.jsonl"
    assert f"{capture}: complete" in done.stdout
    found = [json.loads(line) for line in capture.read_text().splitlines()]
    assert [r["request"] for r in found if r["kind"] == "result"] == ["c0", "c1", "c2"]
