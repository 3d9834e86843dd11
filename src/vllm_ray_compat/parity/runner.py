"""A parity run: start Ray, run the arms one by one, stop everything, write the report."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from vllm_ray_compat import schedule
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import environment, folder
from vllm_ray_compat.parity.arm import MP, ArmSpec
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.conclude import check_what_ran, conclude
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.ownership import Segments
from vllm_ray_compat.parity.plan import Plan
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.report.files import write_report
from vllm_ray_compat.parity.supervise import ArmOutcome, run_arm
from vllm_ray_compat.parity.topology import Topology
from vllm_ray_compat.schedule import Backend


class Watcher(Protocol):
    """What a run tells while it works (see ``progress.Display``)."""

    def step(self, label: str) -> None: ...  # noqa: D102
    def now(self, what: str) -> None: ...  # noqa: D102
    def done(self, how: str) -> None: ...  # noqa: D102


def run(
    checked: Plan,
    watch: Watcher,
    environ: Mapping[str, str] | None = None,
    stop: StopRequest | None = None,
) -> rep.Report:
    """Run a checked plan; returns the report and writes it with all captures and logs.

    Whatever ends the run, an error or a request to stop, nothing it started keeps running.

    Raises:
        InterruptedRunError: *stop* was asked for.
        ClusterError: Ray did not start.
    """
    options = checked.options
    where = folder.prepare(options.report_dir)
    stop = stop or StopRequest()
    started = datetime.now(timezone.utc)
    began = time.monotonic()
    suite_file = where / "suite.json"
    suite_file.write_text(
        checked.suite.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8"
    )
    base = environment.base_environment(os.environ if environ is None else environ, cpu=checked.cpu)
    outcomes: list[ArmOutcome] = []
    segments = Segments()
    with contextlib.ExitStack() as stack:
        stack.callback(segments.free)  # last, when no worker of ours is left to use them
        cluster, ray = _reach_ray(checked, base, where, watch, stack, stop)
        for topology, backend, role in checked.arms:
            if any(outcome.environment for outcome in outcomes):
                break
            spec = _spec(checked, topology, backend, role, where, suite_file)
            watch.step(spec.label)
            outcome = run_arm(
                spec,
                environment.arm_environment(
                    base,
                    backend,
                    engine_core=options.engine_core,
                    ray={} if backend == MP else ray,
                    restore_legacy=(
                        backend == Backend.LEGACY.value
                        and checked.executors[backend] in schedule.COMPAT_EXECUTORS.values()
                    ),
                ),
                where,
                options.arm_timeout_s,
                cluster,
                _phase_teller(watch),
                stop,
                segments,
            )
            check_what_ran(checked, outcome, outcomes)
            outcomes.append(outcome)
            watch.done(
                f"done in {outcome.took_s:.1f} s"
                if outcome.failure is None
                else f"FAILED: {outcome.failure}"
            )
        if cluster is not None and any(outcome.failure for outcome in outcomes):
            _keep_ray_logs(cluster, where)
    report = conclude(
        checked, outcomes, segments.free(), started.isoformat(timespec="seconds"), began
    )
    write_report(report, where)
    return report


def _reach_ray(
    checked: Plan,
    base: Mapping[str, str],
    where: Path,
    watch: Watcher,
    stack: contextlib.ExitStack,
    stop: StopRequest,
) -> tuple[RayCluster | None, dict[str, str]]:
    if not checked.needs_ray:
        return None, {}
    if checked.options.ray_address is not None:
        return None, environment.other_cluster(checked.options.ray_address)
    watch.step("Ray cluster")
    began = time.monotonic()
    cluster = stack.enter_context(
        RayCluster(
            devices=max(topology.world_size for topology in checked.topologies),
            environ=base,
            log=where / "ray-start.log",
            fake_devices=checked.cpu,
            stop=stop,
        )
    )
    watch.done(f"started in {time.monotonic() - began:.1f} s at {cluster.address}")
    return cluster, environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)


def _spec(
    checked: Plan, topology: Topology, backend: str, role: str, where: Path, suite_file: Path
) -> ArmSpec:
    spec = ArmSpec(
        role=role,
        backend=backend,
        topology=str(topology),
        model=str(checked.model.folder),
        suite=suite_file.resolve(),
        capture=where,
        expected_executor=checked.executors[backend],
        engine_core=checked.options.engine_core,
        engine_args={**checked.model.engine_args, **checked.options.engine_args},
    )
    spec.capture = (where / f"{spec.label}.jsonl").resolve()
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


def _keep_ray_logs(cluster: RayCluster, where: Path) -> None:
    if cluster.logs is not None:
        shutil.copytree(
            cluster.logs,
            where / folder.RAY_LOGS,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("events", "old"),
        )
