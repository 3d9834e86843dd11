"""Arms that crash, hang or cannot start: real processes, with a made-up vLLM that misbehaves.

The engine tests do the same to real engines; here each way to fail takes a second.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.arm import ArmSpec
from vllm_ray_compat.parity.ownership import Segments, mapped_segments, session_members
from vllm_ray_compat.parity.supervise import ArmOutcome, run_arm
from vllm_ray_compat.parity.workloads import load_suite

Run = Callable[..., tuple[ArmOutcome, list[cap.Phase]]]


@pytest.fixture
def run(fake_vllm: Callable, tmp_path: Path) -> Run:
    def go(vllm: str, timeout_s: float = 30.0) -> tuple[ArmOutcome, list[cap.Phase]]:
        fake = fake_vllm()
        fake.write("__init__.py", textwrap.dedent(vllm))
        suite = tmp_path / "suite.json"
        suite.write_text(load_suite("smoke").model_dump_json(by_alias=True))
        spec = ArmSpec(
            role="candidate",
            backend="v2",
            topology="tp2",
            model="/m",
            suite=suite,
            capture=tmp_path / "c.jsonl",
            expected_executor="a:B",
        )
        phases: list[cap.Phase] = []
        environ = {**os.environ, "PYTHONPATH": str(fake.root)}
        outcome = run_arm(spec, environ, tmp_path, timeout_s, None, phases.append)
        return outcome, phases

    return go


def test_vllm_that_cannot_be_imported_is_the_environments_fault(run: Run) -> None:
    outcome, phases = run("raise ImportError('libtorch.so not found')")
    assert outcome.failure == "environment: vLLM cannot be imported: libtorch.so not found"
    assert outcome.environment
    assert [p.name for p in phases] == ["import"]


def test_an_engine_that_does_not_start_shows_the_root_cause(run: Run) -> None:
    outcome, _ = run(
        """
        def LLM(**kw):
            try:
                raise OSError("no space left on device")
            except OSError as error:
                raise RuntimeError("Engine core initialization failed") from error
        """
    )
    assert outcome.failure is not None
    assert outcome.failure.startswith("engine-start: OSError: no space left on device (seen as")
    assert not outcome.environment
    assert any("no space left" in line for line in outcome.log_tail())


def test_a_crash_names_the_signal(run: Run) -> None:
    outcome, _ = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.failure == "crash: killed by SIGKILL"


def test_an_exit_before_the_end_is_a_crash(run: Run) -> None:
    outcome, _ = run("import os; print('last words', flush=True); os._exit(0)")
    assert outcome.failure == "crash: exit code 0 before the end of the suite"
    assert outcome.log_tail()[-1] == "last words"


def test_a_hang_is_ended_and_shows_where(run: Run) -> None:
    began = time.monotonic()
    outcome, _ = run("import time\ndef LLM(**kw):\n    time.sleep(600)\n", timeout_s=4)
    assert time.monotonic() - began < 20
    assert outcome.failure is not None
    assert outcome.failure.startswith("hang: no end within 4 s (--arm-timeout)")
    assert any("in LLM" in line for line in outcome.log_tail(40))


def test_nothing_is_left_when_an_arm_dies_without_cleaning_up(run: Run, tmp_path: Path) -> None:
    """It leaves a child that ignores SIGTERM and a segment that both have mapped."""
    outcome, _ = run(
        f"""
        import os, signal, subprocess, sys, time
        from multiprocessing import resource_tracker, shared_memory
        shm = shared_memory.SharedMemory(create=True, size=4096)
        resource_tracker.unregister(shm._name, "shared_memory")
        open({str(tmp_path / "name")!r}, "w").write(shm.name)
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    name, pid = (tmp_path / "name").read_text(), int((tmp_path / "pid").read_text())
    assert outcome.failure == "crash: killed by SIGKILL"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not Path("/dev/shm", name).exists()
    assert outcome.left == []


def test_a_segment_that_others_use_is_left_alone(tmp_path: Path) -> None:
    import mmap

    path = Path("/dev/shm") / f"raycompat-test-{os.getpid()}"
    path.write_bytes(b"\0" * 4096)
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert str(path) in mapped_segments(os.getpid())
            segments = Segments()
            segments.note([psutil.Process()])
            # this very process still maps it
            left = segments.free(wait_s=0.3)
            assert str(path) in left
            assert path.exists()
        segments.free(wait_s=0.3)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_session_members_and_the_dead() -> None:
    assert psutil.Process() in session_members(os.getsid(0))
    assert mapped_segments(2**22 - 1) == set()
