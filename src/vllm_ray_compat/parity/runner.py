"""A parity run: start Ray, run the arms one by one, stop everything, write the report."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, Protocol

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import environment, folder
from vllm_ray_compat.parity.arm import ArmSpec
from vllm_ray_compat.parity.backends import MP
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.conclude import check_what_ran, conclude
from vllm_ray_compat.parity.further import forced_arms, forced_results, step_differences
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.ownership import Segments
from vllm_ray_compat.parity.past import PROCESSOR
from vllm_ray_compat.parity.plan import Plan, PlannedArm
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.report.files import write_report
from vllm_ray_compat.parity.supervise import ArmOutcome, run_arm
from vllm_ray_compat.parity.workloads import Suite


class Watcher(Protocol):
    """What a run tells while it works (see ``progress.Display``)."""

    def step(self, label: str) -> None: ...  # noqa: D102
    def now(self, what: str) -> None: ...  # noqa: D102
    def done(self, how: str) -> None: ...  # noqa: D102


class Ran(NamedTuple):
    """The arms of a plan, run.

    Attributes:
        where: the report folder, with captures and logs.
        outcomes: of the arms, in their order.
        left_behind: segments that could not be freed.
        started: ISO 8601.
        began: the same by the monotonic clock (seconds).
    """

    where: Path
    outcomes: list[ArmOutcome]
    left_behind: list[str]
    started: str
    began: float


def run(
    checked: Plan,
    watch: Watcher,
    environ: Mapping[str, str] | None = None,
    stop: StopRequest | None = None,
) -> rep.Report:
    """Run a checked plan; returns the report and writes it with all captures and logs.

    Raises:
        InterruptedRunError: *stop* was asked for.
        ClusterError: Ray did not start.
    """
    ran = run_arms(checked, watch, environ, stop)
    report = conclude(checked, ran.outcomes, ran.left_behind, ran.started, ran.began)
    if checked.options.trace:
        report.steps = step_differences(ran.outcomes)
    if checked.options.forcing and (arms := forced_arms(checked, ran.outcomes, report)):
        write_report(report, ran.where)  # what is known already is not lost if this is interrupted
        forced = run_arms(replace(checked, arms=arms), watch, environ, stop, into=ran.where)
        report.forced, report.not_forced = forced_results(ran.outcomes, forced.outcomes)
        report.left_behind = sorted({*report.left_behind, *forced.left_behind})
        report.took_s = round(time.monotonic() - ran.began, 1)
    write_report(report, ran.where)
    return report


def run_arms(
    checked: Plan,
    watch: Watcher,
    environ: Mapping[str, str] | None = None,
    stop: StopRequest | None = None,
    into: Path | None = None,
) -> Ran:
    """Run the arms of a checked plan; captures and logs are written as they come.

    Whatever ends the run, an error or a request to stop, nothing it started keeps running.

    Args:
        checked: what to run.
        watch: told of every step.
        environ: the caller's environment; default this process's.
        stop: asked all the time.
        into: the report folder as it is; default that of the plan, cleared of an older run.

    Raises:
        InterruptedRunError: *stop* was asked for.
        ClusterError: Ray did not start.
    """
    options = checked.options
    where = into or folder.prepare(options.report_dir)
    stop = stop or StopRequest()
    started = datetime.now(timezone.utc)
    began = time.monotonic()
    suite_file = _write_suite(checked.suite, where / "suite.json")
    given = os.environ if environ is None else environ
    outcomes: list[ArmOutcome] = []
    segments = Segments()
    with contextlib.ExitStack() as stack:
        stack.callback(segments.free)  # last, when no worker of ours is left to use them
        rays = _reach_ray(checked, given, where, watch, stack, stop)
        for arm in checked.arms:
            if any(outcome.environment for outcome in outcomes):
                break
            side = arm.side
            ray = rays.get(side.python, _NO_RAY) if side.backend != MP else _NO_RAY
            spec = _spec(checked, arm, where, suite_file)
            watch.step(spec.label)
            outcome = run_arm(
                spec,
                environment.arm_environment(
                    environment.base_environment(given, cpu=side.is_cpu_build),
                    side.backend,
                    engine_core=options.engine_core,
                    ray=ray.variables,
                    restore_legacy=side.restores_legacy,
                    bundle_indices=checked.bundle_indices.get(side.name),
                ),
                where,
                checked.timeout_s(arm),
                ray.cluster,
                _phase_teller(watch),
                stop,
                segments,
            )
            if arm.suite is None:
                check_what_ran(checked, outcome, outcomes)
            outcomes.append(outcome)
            watch.done(
                f"done in {outcome.took_s:.1f} s"
                if outcome.failure is None
                else f"FAILED: {outcome.failure}"
            )
        if any(outcome.failure for outcome in outcomes):
            _keep_ray_logs(rays, where)
    return Ran(where, outcomes, segments.free(), started.isoformat(timespec="seconds"), began)


def _write_suite(suite: Suite, path: Path) -> Path:
    path.write_text(suite.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")
    return path


class _Ray(NamedTuple):
    """The Ray of one Python environment: its cluster, where the run started it, and the way."""

    cluster: RayCluster | None
    variables: Mapping[str, str]


_NO_RAY = _Ray(None, {})


def _reach_ray(
    checked: Plan,
    given: Mapping[str, str],
    where: Path,
    watch: Watcher,
    stack: contextlib.ExitStack,
    stop: StopRequest,
) -> dict[str | None, _Ray]:
    """Start a cluster for each Python environment that needs one, or name the one there is."""
    sides = {arm.side.python: arm.side for arm in checked.arms if arm.side.backend != MP}
    if sides and checked.options.ray_address is not None:
        return {None: _Ray(None, environment.other_cluster(checked.options.ray_address))}
    rays: dict[str | None, _Ray] = {}
    for number, (python, side) in enumerate(sides.items(), 1):
        watch.step("Ray cluster" if len(sides) == 1 else f"Ray cluster for {side.name}")
        began = time.monotonic()
        cluster = stack.enter_context(
            RayCluster(
                devices=max(topology.world_size for topology in checked.topologies)
                * max(checked.suite.profile(arm.profile).engines for arm in checked.arms),
                environ=environment.base_environment(given, cpu=side.is_cpu_build),
                log=where / ("ray-start.log" if number == 1 else f"ray-start-{number}.log"),
                fake_devices=side.is_cpu_build,
                stop=stop,
                python=python,
            )
        )
        watch.done(f"started in {time.monotonic() - began:.1f} s at {cluster.address}")
        rays[python] = _Ray(
            cluster, environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)
        )
    return rays


def _spec(checked: Plan, arm: PlannedArm, where: Path, suite_file: Path) -> ArmSpec:
    model = checked.models[arm.profile]
    spec = ArmSpec(
        role=arm.role,
        backend=arm.side.backend,
        side=arm.side.name,
        python=arm.side.python,
        vllm=arm.side.vllm,
        topology=str(arm.topology),
        profile=arm.profile,
        not_run=list(checked.not_run.values()),
        trace=checked.options.trace,
        model=str(model.folder),
        suite=suite_file.resolve(),
        capture=where,
        expected_executor=arm.side.executor,
        engine_core=checked.options.engine_core,
        engine_args={**model.engine_args, **checked.options.engine_args},
    )
    spec.capture = (where / f"{spec.label}.jsonl").resolve()
    if arm.suite is not None:
        spec.suite = _write_suite(arm.suite, where / f"{spec.label}.suite.json").resolve()
        spec.engine_args["logits_processors"] = [PROCESSOR]
        spec.trace = False
    return spec


def _phase_teller(watch: Watcher) -> Callable[[cap.Phase], None]:
    texts = {
        "import": "importing vLLM",
        "engine": "starting the engine",
        "shutdown": "shutting down",
    }

    def tell(phase: cap.Phase) -> None:
        watch.now(texts.get(phase.name, f"workload {phase.detail}"))

    return tell


def _keep_ray_logs(rays: Mapping[str | None, _Ray], where: Path) -> None:
    for number, ray in enumerate(rays.values(), 1):
        if ray.cluster is not None and ray.cluster.logs is not None:
            shutil.copytree(
                ray.cluster.logs,
                where / folder.RAY_LOGS / ("" if number == 1 else str(number)),
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("events", "old"),
            )
