"""Arms that crash, hang or cannot start: real processes, with a made-up vLLM that misbehaves.

The engine tests do the same to real engines; here each way to fail takes a second.
"""

from __future__ import annotations

import mmap
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.arm import ArmSpec
from vllm_ray_compat.parity.cluster import ClusterError, RayCluster
from vllm_ray_compat.parity.ownership import Segments, session_members
from vllm_ray_compat.parity.supervise import ArmOutcome, run_arm
from vllm_ray_compat.parity.workloads import load_suite
from vllm_ray_compat.shared_memory import mapped_segments

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


def test_a_traceback_as_text_is_told_by_its_last_line(run: Run) -> None:
    """As Ray sends it, in colours."""
    outcome, _ = run(
        """
        def LLM(**kw):
            raise RuntimeError(
                "\\x1b[36mray::Worker.step()\\x1b[39m (pid=1)\\n"
                '  File "/x/dag.py", line 3, in run\\n    f()\\n    ^^^\\n'
                "ValueError: CUDA_VISIBLE_DEVICES set incorrectly."
            )
        """
    )
    said = "RuntimeError: ValueError: CUDA_VISIBLE_DEVICES set incorrectly."
    assert outcome.failure == f"engine-start: {said}"


def test_a_crash_names_the_signal(run: Run) -> None:
    outcome, _ = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.failure == "crash: killed by SIGKILL before the end of the suite"


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
    assert outcome.failure == "crash: killed by SIGKILL before the end of the suite"
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert not Path("/dev/shm", name).exists()


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path("/dev/shm") / f"raycompat-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def test_a_segment_that_others_use_is_left_alone(segment: Path) -> None:
    segments = Segments()
    segment.write_bytes(b"\0" * 4096)
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert str(segment) in mapped_segments(os.getpid())
        segments.note([psutil.Process()])
        assert segments.free(wait_s=0.3) == [str(segment)]  # this very process maps it
        assert segment.exists()
    assert segments.free(wait_s=0.3) == []
    assert not segment.exists()


def test_what_was_there_before_is_not_ours(segment: Path) -> None:
    segment.write_bytes(b"\0" * 4096)
    segments = Segments()
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        segments.note([psutil.Process()])
    assert segments.free(wait_s=0.3) == []
    assert segment.exists()


def test_only_files_directly_in_shared_memory_count(tmp_path: Path) -> None:
    deep = tmp_path / "dev" / "shm" / "psm_x"
    deep.parent.mkdir(parents=True)
    deep.write_bytes(b"\0" * 4096)
    with deep.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert not [path for path in mapped_segments(os.getpid()) if "psm_x" in path]


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("wb") as file:
        file.truncate(2**30)  # sparse
        file.seek(0, 2)
        file.write(b"\nlast line\n")
    outcome = ArmOutcome(ArmSpec.model_construct(), log)
    assert outcome.log_tail(1) == ["last line"]


def test_children_of_a_ray_that_failed_to_start_are_found(
    fake_vllm: Callable, tmp_path: Path
) -> None:
    """``ray start`` leaves a child behind and exits; it is found by session, its parent is gone."""
    fake = fake_vllm()
    (fake.root / "ray" / "scripts").mkdir(parents=True)
    for name in ("__init__.py", "scripts/__init__.py"):
        (fake.root / "ray" / name).touch()
    pid = tmp_path / "pid"
    (fake.root / "ray" / "scripts" / "scripts.py").write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "print('ValueError: port taken')\nsys.exit(1)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(fake.root)}
    cluster = RayCluster(2, environ, tmp_path / "ray.log", fake_devices=True)
    with pytest.raises(ClusterError, match="ended with exit code 1.*port taken"), cluster:
        pass
    child = int(pid.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_session_members_and_the_dead() -> None:
    assert psutil.Process() in session_members(os.getsid(0))
    assert mapped_segments(2**22 - 1) == set()
