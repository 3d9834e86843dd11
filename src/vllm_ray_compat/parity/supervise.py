"""Run one arm as a process: watch it, end it when it hangs, and free what it leaves behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import cluster as ray_cluster
from vllm_ray_compat.parity.arm import ArmSpec
from vllm_ray_compat.parity.ownership import Segments, kill_all, session_members

_POLL_S = 0.2
#: An arm that has written its last record may take this long to exit.
_EXIT_GRACE_S = 20.0
_LOG_LINES = 15


@dataclass
class ArmOutcome:
    """How an arm went.

    Attributes:
        spec: what it was told.
        log: everything it printed.
        failure: why it did not run to its end; None when it did.
        environment: the failure is of this machine or environment, not of the arm.
        took_s: seconds from start to exit.
        left: segments that could not be freed.
    """

    spec: ArmSpec
    log: Path
    failure: str | None = None
    environment: bool = False
    took_s: float = 0.0
    left: list[str] = field(default_factory=list)

    def log_tail(self, lines: int = _LOG_LINES) -> list[str]:
        """Return the last lines of the log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
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
) -> ArmOutcome:
    """Run the arm *spec* to its end and return how it went; never leaves it running.

    Args:
        spec: what the arm is told; written beside its log.
        environ: its whole environment.
        folder: where spec and log are written.
        timeout_s: seconds from its start until it counts as hanging.
        cluster: the run's own Ray, whose workers' segments are looked after; None for another's.
        on_phase: called for every phase the arm enters.
    """
    spec_file = folder / f"{spec.label}.spec.json"
    spec_file.write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
    outcome = ArmOutcome(spec, folder / f"{spec.label}.log")
    segments = Segments()
    began = time.monotonic()
    with outcome.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm_ray_compat.parity.arm", str(spec_file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        hung = not _watch(process, spec, began + timeout_s, cluster, segments, on_phase)
        if hung:
            _ask_where_it_hangs(process)
        code = process.poll()
    finally:
        kill_all(session_members(process.pid), grace_s=2.0)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        outcome.left = segments.free()
        outcome.took_s = round(time.monotonic() - began, 3)
    _judge(outcome, code, hung, timeout_s)
    return outcome


def _watch(
    process: subprocess.Popen[bytes],
    spec: ArmSpec,
    deadline: float,
    cluster: ray_cluster.RayCluster | None,
    segments: Segments,
    on_phase: Callable[[cap.Phase], None],
) -> bool:
    """Follow the arm until it exits; returns False when it outstays its time."""
    tail = _Follower(spec.capture)
    ended = False
    next_note = 0.0
    while True:
        running = process.poll() is None
        now = time.monotonic()
        if now >= next_note:
            segments.note([*session_members(process.pid), *ray_cluster.members(cluster)])
            next_note = now + 1.0
        for record in tail.new_records():
            if isinstance(record, cap.Phase):
                on_phase(record)
                # Noted at every phase, too: between two looks a short arm could come and go.
                segments.note([*session_members(process.pid), *ray_cluster.members(cluster)])
            if isinstance(record, cap.End | cap.Failure) and not ended:
                ended = True
                deadline = min(deadline, now + _EXIT_GRACE_S)
        if not running:
            return True
        if now > deadline:
            return ended
        time.sleep(_POLL_S)


def _ask_where_it_hangs(process: subprocess.Popen[bytes]) -> None:
    """Have the arm write the stacks of its threads into its log before it is killed."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)


def _judge(outcome: ArmOutcome, code: int | None, hung: bool, timeout_s: float) -> None:
    capture: cap.Capture | None = None
    with contextlib.suppress(cap.CaptureError):
        capture = cap.read_capture(outcome.spec.capture)
    if capture is not None and capture.failure is not None:
        outcome.failure = f"{capture.failure.reason}: {capture.failure.message}"
        outcome.environment = capture.failure.reason == "environment"
    elif capture is not None and capture.end is not None:
        return
    elif hung:
        outcome.failure = (
            f"hang: no end within {timeout_s:.0f} s (--arm-timeout); its stacks are in the log"
        )
    elif code is not None and code < 0:
        outcome.failure = f"crash: killed by {signal.Signals(-code).name}"
    else:
        outcome.failure = f"crash: exit code {code} before the end of the suite"


class _Follower:
    """Reads records as they are appended to a capture."""

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
        return [cap.parse_record(line.decode(), str(self._path)) for line in lines]
