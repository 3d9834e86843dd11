"""Runs that several processes want the result of: each topology's arms run once, by one of them.

Whoever comes first holds the topology's lock and runs the arms; the others wait for the outcome,
which is a file. A process that has to wait starts another topology's arms meanwhile, if devices
are free for them. A process that is killed loses its lock, and another starts the arms anew, once.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from vllm_ray_compat.errors import RaycompatError
from vllm_ray_compat.parity import runner
from vllm_ray_compat.parity.device_shares import DeviceShares, visible_devices
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.locks import try_lock
from vllm_ray_compat.parity.plan import Options, Plan, plan
from vllm_ray_compat.parity.progress import Display, PipeConsole

_POLL_S = 0.2
#: How often the arms of one topology are started, when those who ran them were killed.
_MOST_STARTS = 2
#: What a run may take beside its arms, and each arm beside its own timeout, before whoever waits
#: gives up on it (seconds).
_GRACE_S = 180.0
_ARM_GRACE_S = 60.0


class Outcome(BaseModel):
    """How the run of a topology ended; one of ``error`` and ``report`` is there.

    Attributes:
        error: why there is no report, in one paragraph.
        detail: a traceback, where *error* is of a kind nobody expected.
        report: the path of ``report.json``.
    """

    model_config = ConfigDict(extra="forbid")

    error: str | None = None
    detail: str = ""
    report: Path | None = None


class _Start(BaseModel):
    """A line that whoever starts a topology's arms writes first."""

    who: str
    pid: int
    until: float  # seconds since the epoch, when the run must have ended


class SharedRuns:
    """The runs of one session, shared by all processes that are given the same folder.

    Args:
        folder: of this session alone; outcomes and locks are in it.
        options: what to run for a topology, named as in ``--topology``.
        who: this process, for messages.
        at_most: how many topologies may run at once (see :class:`DeviceShares`).
        environ: the environment the arms' is made from.
    """

    def __init__(
        self,
        folder: Path,
        options: Callable[[str], Options],
        who: str,
        at_most: int | None,
        environ: Mapping[str, str],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._options = options
        self._who = who
        self._at_most = at_most
        self._environ = dict(environ)
        self._shares: DeviceShares | None = None
        self._plans: dict[str, Plan] = {}

    def outcome(self, topology: str, others: Sequence[str] = ()) -> Outcome:
        """Return how the run of *topology* ended; run it, or wait for who does.

        Args:
            topology: which.
            others: what else this session wants, to be run meanwhile.

        Raises:
            InterruptedRunError: the process was asked to stop while it ran arms.
        """
        while True:
            found = self._read(topology) or self._given_up(topology)
            if found is not None:
                return found
            if not any(self._run_if_free(wanted) for wanted in (topology, *others)):
                time.sleep(_POLL_S)

    def claim(self, name: str, who: str) -> str:
        """Return who was first to claim *name* in this session: *who*, if nobody was before."""
        path = self._folder / f"{name}.told"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(who)
        except FileExistsError:
            return path.read_text(encoding="utf-8") or who
        return who

    def _run_if_free(self, topology: str) -> bool:
        """Run *topology* unless it is done, being run, or there are no devices for it now."""
        if self._read(topology) is not None:
            return False
        with try_lock(self._folder / f"{topology}.lock") as mine:
            if not mine:
                return False
            if self._read(topology) is not None:  # concluded between the look and the lock
                return True
            starts = self._starts(topology)
            if len(starts) >= _MOST_STARTS:
                names = ", ".join(f"{start.who} (pid {start.pid})" for start in starts)
                self._write(
                    topology,
                    Outcome(
                        error=f"The arms of {topology} were started {len(starts)} times, and the "
                        f"process that ran them died each time: {names}. Was it killed for "
                        "want of memory?"
                    ),
                )
                return True
            return self._run(topology)

    def _run(self, topology: str) -> bool:
        """Run the arms under this process's lock; False when devices have to be waited for."""
        outcome = Outcome(error=f"The run of {topology} was interrupted.")
        waiting = False
        try:
            checked = self.plan(topology)
            shares = self._device_shares(checked)
            count = checked.topologies[0].world_size
            shares.check(count)
            with shares.take(count) as environ:
                if environ is None:
                    waiting = True
                    return False
                outcome = self._run_arms(topology, checked, environ)
        except RaycompatError as error:
            outcome = Outcome(error=str(error))
        except Exception as error:  # told by every item of this topology, and tried by none again
            outcome = Outcome(
                error=f"{type(error).__name__}: {error}", detail=traceback.format_exc()
            )
        finally:
            # Also when the process is asked to stop, or a time limit of pytest's strikes.
            if not waiting:
                self._write(topology, outcome)
        return True

    def _run_arms(self, topology: str, checked: Plan, environ: Mapping[str, str]) -> Outcome:
        arms_s = sum(checked.timeout_s(arm) + _ARM_GRACE_S for arm in checked.arms)
        start = _Start(who=self._who, pid=os.getpid(), until=time.time() + arms_s + _GRACE_S)
        with self._starts_file(topology).open("a", encoding="utf-8") as file:
            file.write(start.model_dump_json() + "\n")
        with StopRequest() as stop, Display(_console(), checked.steps) as display:
            runner.run(checked, display, {**self._environ, **environ}, stop)
        return Outcome(report=(checked.options.report_dir / "report.json").resolve())

    def plan(self, topology: str) -> Plan:
        """Return the checked plan of *topology*.

        Raises:
            RaycompatError: see :func:`~vllm_ray_compat.parity.plan.plan`.
        """
        if topology not in self._plans:  # asked again and again while devices are waited for
            self._plans[topology] = plan(self._options(topology))
        return self._plans[topology]

    def _device_shares(self, checked: Plan) -> DeviceShares:
        if self._shares is None:
            cpu = all(arm.side.is_cpu_build for arm in checked.arms)
            theirs = cpu or checked.options.ray_address is not None
            devices = None if theirs else visible_devices(self._environ)
            self._shares = DeviceShares(self._folder, devices, self._at_most)
        return self._shares

    def _given_up(self, topology: str) -> Outcome | None:
        """Return an outcome when whoever runs *topology* is there and past every time limit."""
        starts = self._starts(topology)
        if not starts or time.time() < starts[-1].until:
            return None
        with try_lock(self._folder / f"{topology}.lock") as free:
            if free:  # it died: to be started anew, or it has just ended
                return None
        return self._read(topology) or Outcome(
            error=f"{starts[-1].who} (pid {starts[-1].pid}) runs the arms of {topology} and has "
            "not ended although all their time limits have passed."
        )

    def _starts_file(self, topology: str) -> Path:
        return self._folder / f"{topology}.starts.jsonl"

    def _starts(self, topology: str) -> list[_Start]:
        try:
            lines = self._starts_file(topology).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [_Start.model_validate_json(line) for line in lines]

    def _read(self, topology: str) -> Outcome | None:
        try:
            text = (self._folder / f"{topology}.outcome.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return Outcome.model_validate_json(text)

    def _write(self, topology: str, outcome: Outcome) -> None:
        """Write the outcome so that a reader finds all of it or nothing."""
        path = self._folder / f"{topology}.outcome.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(outcome.model_dump_json(), encoding="utf-8")
        part.replace(path)


def _console() -> Console:
    # Plain lines: pytest shows what a failed item has printed, and -s shows it at once.
    return PipeConsole(stderr=True, force_terminal=False, no_color=True)
