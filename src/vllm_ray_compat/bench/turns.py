"""Take the arms in turn: A B C C B A, so that what changes on the machine changes for all.

Fresh: each turn starts its engine, measures it and ends it, and nothing else runs meanwhile. So an
interval covers what differs from one start to the next (where processes land, how memory falls),
and starts are measured, too. Kept: all engines of a topology are started once and live side by
side; many more passes go into the same time, and the intervals are those of these engines. Before
a turn engines are waited for until they rest: readers of vLLM's message queue spin for a second
after their last message.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from vllm_ray_compat.bench.metrics import METRICS, START, of_what
from vllm_ray_compat.bench.plan import BenchPlan, PlannedArm
from vllm_ray_compat.bench.process import ArmProcess
from vllm_ray_compat.bench.protocol import ArmSpec, Ready
from vllm_ray_compat.bench.result import Turn
from vllm_ray_compat.errors import UnusableEnvironmentError
from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity.arm import as_read
from vllm_ray_compat.parity.cluster import RayCluster, members
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.ownership import Segments
from vllm_ray_compat.parity.progress import Display
from vllm_ray_compat.parity.sides import Side
from vllm_ray_compat.parity.topology import Topology
from vllm_ray_compat.vllm_api import find_vllm

#: An arm at rest uses less than this share of one core.
RESTING = 0.05
#: Seconds for it; an arm that does not come to rest is told of in its turn.
REST_WITHIN_S = 4.0
#: Seconds at rest over which idle CPU is measured, after as many to settle.
IDLE_S = 2.0
#: Seconds for the workers of an ended arm to be gone.
GONE_WITHIN_S = 15.0

#: The one way there is through what is no executor.
_FLOORS_PATH = "rpc"


class TopologyRun:
    """The turns of one topology; :meth:`take` yields them as they are measured."""

    def __init__(
        self, plan: BenchPlan, topology: Topology, stop: StopRequest, display: Display
    ) -> None:
        self._plan, self._topology, self._stop, self._display = plan, topology, stop, display
        self._options = plan.options
        self._segments = Segments()
        self._clusters: dict[str | None, RayCluster] = {}
        self._live: dict[str, ArmProcess] = {}
        self._starts: dict[str, int] = {}
        self.about: dict[str, Ready] = {}

    def take(self, began: float) -> Iterator[Turn]:
        """Measure pass after pass.

        Args:
            began: when the run began (``time.monotonic()``).

        Raises:
            ArmDiedError: an arm ended or fell silent. What was yielded before holds.
            UnusableEnvironmentError: Ray cannot be started.
            InterruptedRunError: the run was asked to stop.
        """
        deadline = time.monotonic() + self._options.at_most_s
        with contextlib.ExitStack() as stack:
            stack.callback(self._segments.free)
            self._start_clusters(stack)
            stack.callback(self._end_all)
            for number in range(self._options.passes):
                if time.monotonic() > deadline:
                    self._display.now(f"{self._options.at_most_s:g} s (--at-most) are over")
                    return
                order = self._plan.arms if number % 2 == 0 else self._plan.arms[::-1]
                for place, arm in enumerate(order):
                    self._display.step(f"{self._topology}, pass {number + 1}, {arm.name}")
                    at = time.monotonic() - began
                    rested, measured = self._turn(arm)
                    self._display.done(_told(measured))
                    yield Turn.model_validate(
                        {
                            "topology": str(self._topology),
                            "pass": number,
                            "place": place,
                            "arm": arm.name,
                            "engine": self._starts[arm.name],
                            "at_s": round(at, 1),
                            "rested": rested,
                            "measured": measured,
                        }
                    )

    def _turn(self, arm: PlannedArm) -> tuple[bool, dict[str, float]]:
        if not self._options.keep:
            process = self._start(arm)
            try:
                ready = self._ready(arm)
                measured = {f"{START}.{name}": s for name, s in ready.start_s.items()}
                measured["engine.start_s"] = sum(ready.start_s.values())
                return True, self._measure(process, arm.side is None) | measured
            finally:
                self._end(arm.name)
        if not self._live:
            # All at once, before the first turn: a start beside a measurement would disturb it.
            for one in self._plan.arms:
                self._start(one)
            for one in self._plan.arms:
                self._ready(one)
        rested = self._come_to_rest()
        return rested, self._measure(self._live[arm.name], arm.side is None)

    def _measure(self, process: ArmProcess, floor: bool) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in self._options.measures:
            if floor and one.how.get("path", _FLOORS_PATH) != _FLOORS_PATH:
                continue
            answer = process.ask(self._options.arm_timeout_s, one.measure, **one.how)
            found |= {f"{one.key}.{name}": value for name, value in answer.items()}
        return found | {"idle.cores": self._idle(process)}

    def _idle(self, process: ArmProcess) -> float:
        """Return the cores that an engine at rest uses."""
        self._wait(IDLE_S)
        before, began = process.cpu_s(), time.monotonic()
        self._wait(IDLE_S)
        return round((process.cpu_s() - before) / (time.monotonic() - began), 4)

    def _start(self, arm: PlannedArm) -> ArmProcess:
        options, side = self._options, arm.side
        cluster = self._clusters.get(_python_of(arm)) if arm.on_ray else None
        ray = (
            environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)
            if cluster
            else {}
        )
        environ = environment.arm_environment(
            self._base(),
            arm.backend,
            engine_core=options.engine_core,
            ray=ray,
            restore_legacy=side is not None and side.restores_legacy,
        )
        if side is None:
            module = "floor_arm"
        else:
            module = "control_arm" if options.kind == "control-plane" else "decode_arm"
        spec = ArmSpec(
            name=arm.name,
            backend=arm.backend,
            topology=str(self._topology),
            model="" if side is None else str(self._plan.model.folder),
            engine_args={} if side is None else self._plan.model.engine_args | options.engine_args,
        )
        log = options.report_dir / log_name(str(self._topology), arm.name)
        process = ArmProcess(module, spec, environ, log, self._stop, _python_of(arm))
        self._live[arm.name] = process
        self._starts[arm.name] = self._starts.get(arm.name, 0) + 1
        return process

    def _ready(self, arm: PlannedArm) -> Ready:
        process = self._live[arm.name]
        ready = process.ready(self._options.arm_timeout_s)
        if arm.side is not None and ready.executor != self._expected(arm.side):
            raise UnusableEnvironmentError(
                f"The arm {arm.name} was to run {arm.side.executor}, but the live engine runs "
                f"{ready.executor}. See its log in {self._options.report_dir}."
            )
        self.about[arm.name] = ready
        return ready

    def _expected(self, side: Side) -> str:
        """Return the executor that an arm must say it runs."""
        seen_from = "engine" if self._options.engine_core == "inproc" else "workers"
        return as_read(side.executor, seen_from)

    def _end(self, name: str) -> None:
        process = self._live.pop(name)
        for cluster in self._clusters.values():
            self._segments.note(members(cluster))
        self._segments.note(process.processes())
        process.end()
        about = self.about.get(name)
        deadline = time.monotonic() + GONE_WITHIN_S
        # Actors go when Ray has seen that their driver has gone; a turn begins without them.
        while about and any(map(psutil.pid_exists, about.pids)) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _end_all(self) -> None:
        for name in [*self._live]:
            self._end(name)

    def _start_clusters(self, stack: contextlib.ExitStack) -> None:
        """Start a cluster for each interpreter that has arms on Ray, with devices for these."""
        for python in dict.fromkeys(_python_of(arm) for arm in self._plan.arms if arm.on_ray):
            sides = [
                a.side for a in self._plan.arms if a.side and a.on_ray and _python_of(a) == python
            ]
            at_once = len(sides) if self._options.keep else 1
            self._clusters[python] = stack.enter_context(
                RayCluster(
                    devices=at_once * self._topology.world_size,
                    environ=self._base(),
                    log=self._options.report_dir / f"ray-{len(self._clusters) + 1}.log",
                    fake_devices=find_vllm().is_cpu_build,
                    stop=self._stop,
                    python=python,
                )
            )

    def _come_to_rest(self) -> bool:
        """Wait until no engine uses the CPU; says whether they came to rest."""
        arms = list(self._live.values())
        deadline = time.monotonic() + REST_WITHIN_S
        while time.monotonic() < deadline:
            before, began = [arm.cpu_s() for arm in arms], time.monotonic()
            self._wait(0.3)
            took = time.monotonic() - began
            if all(a.cpu_s() - b < RESTING * took for a, b in zip(arms, before, strict=True)):
                return True
        return False

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self._stop.check()

    def _base(self) -> dict[str, str]:
        return environment.base_environment(os.environ, cpu=find_vllm().is_cpu_build)


def _told(measured: dict[str, float]) -> str:
    """Return a line on a turn: the first claim of each thing measured, for who waits."""
    first: dict[str, str] = {}
    for key in measured:
        known = METRICS.get(key.rpartition(".")[2])
        if known is not None and known.is_claim:
            first.setdefault(of_what(key), key)
    return ", ".join(f"{key} {measured[key]:.4g}" for key in first.values())


def log_name(topology: str, arm: str) -> str:
    """Return the name of an arm's log in the report folder."""
    return f"{topology}-{arm}.log".replace("/", "_")


def remove_logs(folder: Path, plan: BenchPlan) -> None:
    """Remove the logs of an earlier run, which a fresh arm would add to."""
    for topology in plan.topologies:
        for arm in plan.arms:
            (folder / log_name(str(topology), arm.name)).unlink(missing_ok=True)


def _python_of(arm: PlannedArm) -> str | None:
    return arm.side.python if arm.side is not None else None
