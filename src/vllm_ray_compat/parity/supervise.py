"""Run one arm as a process: watch it, end it when it hangs, and free what it leaves behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import cluster as ray_cluster
from vllm_ray_compat.parity.arm import ArmSpec
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.ownership import Segments, kill_all, session_members, spawn

_POLL_S = 0.2
#: An arm that has written its last record may take this part of its time to exit: on two cores
#: that other engines share, Python takes half a minute to end what vLLM has imported.
_EXIT_PART = 1 / 5
_LOG_LINES = 15
_LOG_BYTES = 64 * 1024


@dataclass
class ArmOutcome:
    """How an arm went.

    Attributes:
        spec: what it was told.
        log: everything it printed.
        failure: why it did not run to its end; None when it did.
        environment: the failure is of this machine or environment, not of the arm.
        took_s: seconds from start to exit.
    """

    spec: ArmSpec
    log: Path
    failure: str | None = None
    environment: bool = False
    took_s: float = 0.0

    def log_tail(self, lines: int = _LOG_LINES) -> list[str]:
        """Return the last lines of the log, without reading more than its end."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _LOG_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return []
        return text.rstrip().splitlines()[-lines:]


def run_arm(
    spec: ArmSpec,
    environ: Mapping[str, str],
    folder: Path,
    timeout_s: float,
    cluster: ray_cluster.RayCluster | None,
    on_phase: Callable[[cap.Phase], None],
    stop: StopRequest | None = None,
    segments: Segments | None = None,
) -> ArmOutcome:
    """Run the arm *spec* to its end and return how it went; never leaves it running.

    Args:
        spec: what the arm is told; written beside its log.
        environ: its whole environment.
        folder: where spec and log are written.
        timeout_s: seconds from its start until it counts as hanging.
        cluster: the run's own Ray, whose workers' segments are looked after; None for another's.
        on_phase: called for every phase the arm enters.
        stop: asked while the arm runs.
        segments: the run's; what of the arm's is no longer in use is freed here, the rest by the
            run when its Ray has ended.
    """
    segments = segments or Segments()
    spec_file = folder / f"{spec.label}.spec.json"
    spec_file.write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
    outcome = ArmOutcome(spec, folder / f"{spec.label}.log")
    watch = _Watch(spec, cluster, segments, on_phase, stop or StopRequest())
    began = time.monotonic()
    process = spawn(
        "vllm_ray_compat.parity.arm",
        str(spec_file.resolve()),
        log=outcome.log,
        environ=environ,
        python=spec.python,
    )
    try:
        hung = not watch.until_exit(process, began + timeout_s, timeout_s * _EXIT_PART)
        if hung and not watch.ended:
            _ask_where_it_hangs(process)
        code = process.poll()
    finally:
        kill_all(session_members(process.pid), grace_s=2.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        segments.free()
        outcome.took_s = round(time.monotonic() - began, 3)
    _judge(outcome, code, hung, timeout_s)
    return outcome


class _Watch:
    """Follows one arm: tells its phases, notes its segments, keeps its deadline."""

    def __init__(
        self,
        spec: ArmSpec,
        cluster: ray_cluster.RayCluster | None,
        segments: Segments,
        on_phase: Callable[[cap.Phase], None],
        stop: StopRequest,
    ) -> None:
        self._follower = _Follower(spec.capture)
        self._cluster = cluster
        self._on_phase = on_phase
        self._stop = stop
        self._segments = segments
        #: The arm has written its last record.
        self.ended = False

    def until_exit(self, process: subprocess.Popen[bytes], deadline: float, exit_s: float) -> bool:
        """Return when the arm exits; False when it outstays its time.

        Args:
            process: the arm.
            deadline: by the monotonic clock (seconds).
            exit_s: seconds that it has after its last record.

        Raises:
            InterruptedRunError: the run was asked to stop.
        """
        next_note = 0.0
        while True:
            self._stop.check()
            running = process.poll() is None
            now = time.monotonic()
            records = self._follower.new_records()
            # At every phase, too: between two looks a short arm could come and go.
            if now >= next_note or records:
                self._segments.note(
                    [*session_members(process.pid), *ray_cluster.members(self._cluster)]
                )
                next_note = now + 1.0
            for record in records:
                if isinstance(record, cap.Phase):
                    self._on_phase(record)
                if isinstance(record, cap.End | cap.Failure) and not self.ended:
                    self.ended = True
                    deadline = now + exit_s
            if not running:
                return True
            if now > deadline:
                return False
            time.sleep(_POLL_S)


def _ask_where_it_hangs(process: subprocess.Popen[bytes]) -> None:
    """Have the arm write the stacks of its threads into its log before it is killed.

    Only when it listens: one that hangs before it has set itself up would die of the question.
    """
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)


def _judge(outcome: ArmOutcome, code: int | None, hung: bool, timeout_s: float) -> None:
    try:
        capture = cap.read_capture(outcome.spec.capture, lenient_end=True)
    except cap.CaptureError as error:
        capture = None
        if outcome.spec.capture.exists() and outcome.spec.capture.stat().st_size:
            outcome.failure = f"capture: {error}"
            return
    if capture is not None and capture.failure is not None:
        outcome.failure = f"{capture.failure.reason}: {capture.failure.message}"
        outcome.environment = capture.failure.reason == "environment"
        return
    ended = capture is not None and capture.end is not None
    when = "after the end of the suite" if ended else "before the end of the suite"
    if hung:
        outcome.failure = (
            f"hang: still there {timeout_s * _EXIT_PART:.0f} s {when} (a fifth of --arm-timeout)"
            if ended
            else f"hang: no end within {timeout_s:.0f} s (--arm-timeout); its stacks are in the log"
        )
    elif code is not None and code < 0:
        outcome.failure = f"crash: killed by {_signal_name(-code)} {when}"
    elif code != 0 or not ended:
        outcome.failure = f"crash: exit code {code} {when}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Follower:
    """Reads records as they are appended to a capture.

    Only for the display: a line that is no record is passed over here, and reported when the
    whole capture is read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_records(self) -> list[cap.Record]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(cap.CaptureError, UnicodeDecodeError):
                found.append(cap.parse_record(line.decode(), str(self._path)))
        return found
