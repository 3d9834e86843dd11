"""A parity run: check everything, start Ray, run the arms one by one, compare, judge."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, Protocol

from vllm_ray_compat import schedule
from vllm_ray_compat.errors import UnusableEnvironmentError, UsageError, unknown
from vllm_ray_compat.executors import catalog
from vllm_ray_compat.flag import Flag, FlagValue
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import environment, faults, noise
from vllm_ray_compat.parity.arm import MP, MP_EXECUTOR, ArmSpec, is_class
from vllm_ray_compat.parity.cluster import RayCluster
from vllm_ray_compat.parity.compare import Comparison, compare, differences
from vllm_ray_compat.parity.models import Model, find_model
from vllm_ray_compat.parity.report import data as rep
from vllm_ray_compat.parity.supervise import ArmOutcome, run_arm
from vllm_ray_compat.parity.topology import Topology, parse_topology
from vllm_ray_compat.parity.workloads import Suite, load_suite
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import select
from vllm_ray_compat.settings import Settings
from vllm_ray_compat.vllm_api import Installation, find_vllm

BACKENDS: tuple[str, ...] = (Backend.LEGACY.value, Backend.V2.value, MP)

REFERENCE: Literal["reference"] = "reference"
AGAIN: Literal["reference-again"] = "reference-again"
CANDIDATE: Literal["candidate"] = "candidate"


class RayMissingError(UnusableEnvironmentError):
    """Ray is not installed (exit code 3)."""

    def __str__(self) -> str:
        return (
            "Ray is not installed in this Python environment, and the legacy and v2 executors "
            "need it. Install it: pip install 'ray[cgraph]' (without a GPU: pip install ray)."
        )


class Watcher(Protocol):
    """What a run tells while it works (see ``progress.Display``)."""

    def step(self, label: str) -> None: ...  # noqa: D102
    def now(self, what: str) -> None: ...  # noqa: D102
    def done(self, how: str) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Options:
    """What the caller asks of a run; texts as they were given, checked by :func:`plan`."""

    model: str = "tiny"
    topologies: Sequence[str] = ("tp2", "pp2")
    reference: str = Backend.LEGACY.value
    candidates: Sequence[str] = (Backend.V2.value,)
    suite: str = "smoke"
    report_dir: Path = Path("parity-report")
    ray_address: str | None = None
    arm_timeout_s: float = 300.0
    inject_fault: str | None = None
    engine_core: Literal["inproc", "process"] = "inproc"
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A checked run: nothing in it can still be a mistake of the caller."""

    options: Options
    vllm: Installation
    model: Model
    suite: Suite
    topologies: tuple[Topology, ...]
    executors: Mapping[str, str]
    arms: tuple[tuple[Topology, str, str], ...]
    cpu: bool

    @property
    def steps(self) -> int:
        """The arms, and Ray's start where the run starts it."""
        return len(self.arms) + int(self.starts_ray)

    @property
    def needs_ray(self) -> bool:
        """Whether an arm runs on Ray."""
        return any(backend != MP for _, backend, _ in self.arms)

    @property
    def starts_ray(self) -> bool:
        """Whether the run starts a cluster of its own."""
        return self.needs_ray and self.options.ray_address is None


def plan(options: Options) -> Plan:
    """Check everything that can be checked before anything starts.

    Raises:
        UsageError: an unknown word, a topology that does not fit, a model that is not there.
        UnusableEnvironmentError: no vLLM, no Ray, or an executor this release does not have.
    """
    for backend in (options.reference, *options.candidates):
        if is_class(backend):
            _check_class(backend)
        elif backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
    if options.inject_fault is not None and options.inject_fault not in faults.FAULTS:
        raise unknown("fault", options.inject_fault, faults.FAULTS)
    suite = load_suite(options.suite)
    topologies = tuple(dict.fromkeys(parse_topology(text) for text in options.topologies))
    model = find_model(options.model)
    for topology in topologies:
        topology.check(model.heads, model.layers, model.name)
    if options.report_dir.exists() and not options.report_dir.is_dir():
        raise UsageError(f"The report folder {options.report_dir} is a file. Name a folder.")

    vllm = find_vllm()
    candidates = tuple(dict.fromkeys(options.candidates))
    arms = tuple(
        (topology, backend, role)
        for topology in topologies
        for backend, role in (
            (options.reference, REFERENCE),
            *((backend, CANDIDATE) for backend in candidates),
            (options.reference, AGAIN),
        )
    )
    backends = {backend for _, backend, _ in arms}
    if backends != {MP} and importlib.util.find_spec("ray") is None:
        raise RayMissingError
    return Plan(
        options=options,
        vllm=vllm,
        model=model,
        suite=suite,
        topologies=topologies,
        executors={backend: _executor(vllm, backend) for backend in backends},
        arms=arms,
        cpu=environment.cpu_wanted(vllm.is_cpu_build),
    )


def _check_class(backend: str) -> None:
    """Check that the module of a backend given as ``module:Class`` is there.

    Raises:
        UsageError: it is not.
    """
    module = backend.partition(":")[0]
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UsageError(
            f"Backend {backend!r}: there is no module {module!r}. Name an executor class as "
            f"module:Class, or one of {', '.join(BACKENDS)}."
        )


def _executor(vllm: Installation, backend: str) -> str:
    """Return the class that the arm of *backend* must turn out to run."""
    if backend == MP:
        return MP_EXECUTOR
    if is_class(backend):
        return backend
    value = FlagValue.OFF if backend == Backend.LEGACY.value else FlagValue.ON
    decision = select(vllm, flag=Flag(value), settings=Settings(restore_legacy=True))
    if not catalog.is_present(decision):
        raise catalog.ExecutorMissingError(catalog.missing_text(decision))
    return decision.executor


def run(checked: Plan, watch: Watcher, environ: Mapping[str, str] | None = None) -> rep.Report:
    """Run a checked plan; returns the report and writes it with all captures and logs.

    Whatever ends the run, an error or Ctrl-C, nothing it started keeps running.
    """
    options = checked.options
    folder = options.report_dir
    _prepare(folder)
    started = datetime.now(timezone.utc)
    began = time.monotonic()
    suite_file = folder / "suite.json"
    suite_file.write_text(checked.suite.model_dump_json(by_alias=True, indent=2) + "\n")
    base = environment.base_environment(os.environ if environ is None else environ, cpu=checked.cpu)
    outcomes: list[ArmOutcome] = []
    with contextlib.ExitStack() as stack:
        cluster, ray = _reach_ray(checked, base, folder, watch, stack)
        for topology, backend, role in checked.arms:
            if any(outcome.environment for outcome in outcomes):
                break
            spec = _spec(checked, topology, backend, role, folder, suite_file)
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
                folder,
                options.arm_timeout_s,
                cluster,
                _phase_teller(watch),
            )
            outcomes.append(outcome)
            watch.done(
                f"done in {outcome.took_s:.1f} s"
                if outcome.failure is None
                else f"FAILED: {outcome.failure}"
            )
        if cluster is not None and any(outcome.failure for outcome in outcomes):
            _keep_ray_logs(cluster, folder)
    report = _conclude(checked, outcomes, started.isoformat(timespec="seconds"), began)
    rep.write_report(report, folder)
    return report


def _prepare(folder: Path) -> None:
    """Make the report folder, and remove what an earlier run of this tool left in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.jsonl", "*.spec.json", "*.log", "report.json", "suite.json"):
            for old in folder.glob(pattern):
                old.unlink()
        shutil.rmtree(folder / "ray-logs", ignore_errors=True)
    except OSError as error:
        raise UsageError(
            f"The report folder {folder} cannot be written: {error.strerror}. Name another with "
            "--report-dir."
        ) from None


def _reach_ray(
    checked: Plan,
    base: Mapping[str, str],
    folder: Path,
    watch: Watcher,
    stack: contextlib.ExitStack,
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
            log=folder / "ray-start.log",
            fake_devices=checked.cpu,
        )
    )
    watch.done(f"started in {time.monotonic() - began:.1f} s at {cluster.address}")
    return cluster, environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)


def _spec(
    checked: Plan, topology: Topology, backend: str, role: str, folder: Path, suite_file: Path
) -> ArmSpec:
    spec = ArmSpec(
        role=role,
        backend=backend,
        topology=str(topology),
        model=str(checked.model.folder),
        suite=suite_file.resolve(),
        capture=folder,
        expected_executor=checked.executors[backend],
        engine_core=checked.options.engine_core,
        engine_args={**checked.model.engine_args, **checked.options.engine_args},
    )
    spec.capture = (folder / f"{spec.label}.jsonl").resolve()
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


def _keep_ray_logs(cluster: RayCluster, folder: Path) -> None:
    if cluster.logs is not None:
        shutil.copytree(
            cluster.logs,
            folder / "ray-logs",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("events", "old"),
        )


def _conclude(
    checked: Plan, outcomes: Sequence[ArmOutcome], started: str, began: float
) -> rep.Report:
    captures = {o.spec.label: _read(o) for o in outcomes}
    fault = _inject(checked, outcomes, captures)
    verdicts: list[rep.TopologyVerdict] = []
    compared: list[Comparison] = []
    floors: list[rep.NoiseFloor] = []
    for topology in map(str, checked.topologies):
        here = [o for o in outcomes if o.spec.topology == topology]
        usable = {o.spec.role: captures[o.spec.label] for o in here if o.failure is None}
        reference, again = usable.get(REFERENCE), usable.get(AGAIN)
        floor: list[Comparison] = []
        if reference is not None and again is not None:
            floor = compare(topology, reference, again, f"{again.header.backend} again")
            floors.append(
                rep.NoiseFloor(
                    topology=topology,
                    reference=reference.header.backend,
                    runs=2,
                    requests=len(reference.results),
                    differences=differences(floor),
                )
            )
        for outcome in (o for o in here if o.spec.role == CANDIDATE):
            candidate = captures[outcome.spec.label]
            found: list[Comparison] = []
            if reference is not None and candidate is not None and outcome.failure is None:
                found = compare(topology, reference, candidate)
            verdict = noise.judge(floor, found)
            if any(o.failure for o in here if o.spec.role != CANDIDATE or o is outcome):
                verdict = "inconclusive" if any(o.environment for o in here) else "fail"
            compared += found
            verdicts.append(
                rep.TopologyVerdict(
                    topology=topology,
                    reference=checked.options.reference,
                    candidate=outcome.spec.backend,
                    verdict=verdict,
                    requests=len({(c.workload, c.request) for c in found}),
                    different=len({(c.workload, c.request) for c in differences(found)}),
                )
            )
    environment_failure = any(o.environment for o in outcomes)
    overall = noise.worst([v.verdict for v in verdicts])
    if any(o.failure for o in outcomes) and not environment_failure:
        overall = "fail"
    return rep.Report(
        verdict=overall,
        vllm=checked.vllm.version,
        suite=checked.suite.name,
        model=checked.options.model,
        engine_core=checked.options.engine_core,
        started_at=started,
        took_s=round(time.monotonic() - began, 1),
        topologies=verdicts,
        arms=[_arm(o, captures[o.spec.label]) for o in outcomes],
        comparisons=compared,
        noise_floor=floors,
        known_differences=[
            known
            for known in rep.KNOWN_DIFFERENCES
            if known.backend in {o.spec.backend for o in outcomes}
        ],
        injected_fault=fault,
        left_behind=sorted({path for o in outcomes for path in o.left}),
        environment_failure=environment_failure,
    )


def _read(outcome: ArmOutcome) -> cap.Capture | None:
    try:
        return cap.read_capture(outcome.spec.capture)
    except cap.CaptureError:
        if outcome.failure is None:
            raise
        return None  # the arm failed before or while it wrote; its failure is reported


def _inject(
    checked: Plan, outcomes: Sequence[ArmOutcome], captures: dict[str, cap.Capture | None]
) -> faults.Fault | None:
    """Alter the first candidate's capture in memory; the file on disk stays what the arm wrote."""
    if checked.options.inject_fault is None:
        return None
    for outcome in outcomes:
        capture = captures[outcome.spec.label]
        if outcome.spec.role == CANDIDATE and outcome.failure is None and capture is not None:
            captures[outcome.spec.label], fault = faults.inject(
                capture, checked.options.inject_fault
            )
            return fault
    return None


def _arm(outcome: ArmOutcome, capture: cap.Capture | None) -> rep.Arm:
    spec = outcome.spec
    engine = capture.engine if capture else None
    end = capture.end if capture else None
    return rep.Arm.model_validate(
        {
            "label": spec.label,
            "role": spec.role,
            "backend": spec.backend,
            "topology": spec.topology,
            "expected_executor": spec.expected_executor,
            **{
                name: getattr(engine, name, None)
                for name in (
                    *("executor", "executor_read_from", "provider", "vllm", "ray", "torch"),
                    *("python", "dtype", "async_scheduling", "v2_model_runner"),
                )
            },
            "workers": [worker.model_dump() for worker in engine.workers] if engine else [],
            "timings": {
                "engine_start_s": engine.start_s if engine else None,
                "workloads_s": end.workloads_s if end else {},
                "shutdown_s": end.shutdown_s if end else None,
                "total_s": outcome.took_s,
            },
            "capture": spec.capture.name,
            "log": outcome.log.name,
            "failure": outcome.failure,
            "log_tail": outcome.log_tail() if outcome.failure else [],
        }
    )


def parse_engine_args(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` texts; a value is JSON, or else taken as it stands.

    Raises:
        UsageError: a text without ``=`` or without a name.
    """
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"--engine-arg {text!r} is not NAME=VALUE. Example: "
                "--engine-arg disable_custom_all_reduce=true"
            )
        try:
            parsed[name] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed
