"""An arm from the driver's side: a process that is started, asked, and ended with all it has."""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import psutil

from vllm_ray_compat.bench.protocol import ArmSpec, Ready
from vllm_ray_compat.errors import RaycompatError
from vllm_ray_compat.parity import guard
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.ownership import kill_all, session_members

#: Seconds an engine has for its shutdown before it is ended.
_SHUTDOWN_S = 20.0
_LAST_LINES = 15
#: The last line of a traceback.
_ERROR = re.compile(r"[\w.]+(?:Error|Exception|Interrupt)\b")


class ArmDiedError(RaycompatError):
    """An arm ended or fell silent (exit code 1); the text has the end of its log."""


class ArmProcess:
    """A running arm. :meth:`end` must be called; it is idempotent."""

    def __init__(
        self,
        module: str,
        spec: ArmSpec,
        environ: Mapping[str, str],
        log: Path,
        stop: StopRequest,
        python: str | None = None,
    ) -> None:
        """Start the arm; :meth:`ready` waits for it.

        Args:
            module: below ``vllm_ray_compat.bench``: ``control_arm``, ``decode_arm``, ``floor_arm``.
            spec: what it is told.
            environ: its whole environment.
            log: where its output goes; a further start of the same arm is added to it.
            stop: asked while waiting.
            python: the interpreter; default this one.
        """
        self.name = spec.name
        self._log, self._stop = log, stop
        self._about: Ready | None = None
        self._is_busy = True  # it starts, or measures: until it has answered it hears nothing
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [
                    *(python or sys.executable, str(guard.__file__)),
                    *(f"vllm_ray_compat.bench.{module}", spec.model_dump_json()),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=dict(environ),
                start_new_session=True,
            )

    def ready(self, within_s: float) -> Ready:
        """Wait until it can be measured.

        Raises:
            ArmDiedError: it ended, or was silent for *within_s* seconds.
        """
        if self._about is None:
            self._about = Ready.model_validate(self._answer(within_s)["ready"])
        return self._about

    def ask(self, within_s: float, measure: str, **how: Any) -> dict[str, float]:
        """Take a measurement.

        Raises:
            ArmDiedError: as :meth:`ready`.
        """
        assert self._process.stdin is not None
        self._is_busy = True
        try:
            self._process.stdin.write(json.dumps({"measure": measure, **how}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._died("ended")
        measured: dict[str, float] = self._answer(within_s)["measured"]
        return measured

    def processes(self) -> list[psutil.Process]:
        """Return the live processes of its session: the driver's, and the workers of ``mp``."""
        return session_members(self._process.pid)

    def cpu_s(self) -> float:
        """Return the CPU time that the arm has used so far: its session, and its workers in Ray."""
        pids = {process.pid for process in self.processes()}
        pids |= set(self._about.pids) if self._about else set()
        whole = 0.0
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                whole += times.user + times.system
        return whole

    def end(self) -> None:
        """Let it shut down, unless it owes an answer, then end whatever is left of its session."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0 if self._is_busy else _SHUTDOWN_S)
        kill_all(self.processes(), grace_s=2)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _answer(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + within_s
        while not select.select([self._process.stdout], [], [], 0.2)[0]:
            self._stop.check()
            if time.monotonic() > deadline:
                self._died(f"said nothing for {within_s:.0f} s")
        line = self._process.stdout.readline()
        self._is_busy = False  # an answer, or it has ended by itself
        if not line:
            self._died("ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, how: str) -> NoReturn:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        # The error often stands far above the end: what dies with a driver says so, at length.
        errors = [line for line in lines if _ERROR.match(line)]
        raise ArmDiedError(
            f"The arm {self.name} {how}"
            + (f": {errors[-1][:500]}" if errors else "")
            + f". The last lines of its log, {self._log}:\n"
            + "\n".join(line[:300] for line in lines[-_LAST_LINES:])
        )
