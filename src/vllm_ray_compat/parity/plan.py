"""Check a parity run: everything that can be wrong is found before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity import faults, folder
from vllm_ray_compat.parity.backends import MP
from vllm_ray_compat.parity.bundles import bundle_lists
from vllm_ray_compat.parity.capture import NotRun
from vllm_ray_compat.parity.models import Model, find_model
from vllm_ray_compat.parity.sides import Side, resolve
from vllm_ray_compat.parity.tolerance import parse_tolerances
from vllm_ray_compat.parity.topology import Topology, parse_topology
from vllm_ray_compat.parity.workloads import Profile, Suite, load_suite
from vllm_ray_compat.parity.workloads.batch_file import load_requests
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.settings import describe_unknown, read_settings

#: Where the engine core lives: in the arm's own process, or as in production.
EngineCore = Literal["inproc", "process"]
ENGINE_CORES: tuple[EngineCore, ...] = ("inproc", "process")

#: Engine arguments that a run sets itself, and from what.
RESERVED_ENGINE_ARGS = {
    "model": "--model",
    "tensor_parallel_size": "--topology",
    "pipeline_parallel_size": "--topology",
    "distributed_executor_backend": "--reference and --candidate",
    "worker_extension_cls": "the probe that describes the workers",
}

#: The roles of an arm.
REFERENCE: Literal["reference"] = "reference"
AGAIN: Literal["reference-again"] = "reference-again"
CANDIDATE: Literal["candidate"] = "candidate"
#: A candidate whose tokens are forced to the reference's; no part of the verdict.
FORCED = "candidate-forced"


@dataclass(frozen=True)
class Options:
    """What the caller asks of a run; texts as they were given, checked by :func:`plan`."""

    model: str = "tiny"
    topologies: Sequence[str] = ("tp2", "pp2")
    reference: str = Backend.LEGACY.value
    candidates: Sequence[str] = (Backend.V2.value,)
    suite: str = "smoke"
    requests: Path | None = None
    report_dir: Path = Path("parity-report")
    ray_address: str | None = None
    #: For each engine of an arm.
    arm_timeout_s: float = 300.0
    inject_fault: str | None = None
    tolerances: Sequence[str] = ()
    engine_core: EngineCore = "inproc"
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    #: ``LIST`` for all arms on Ray, ``ARM:LIST`` for one.
    bundle_indices: Sequence[str] = ()
    trace: bool = False
    #: After another token, run the candidate once more along the reference's.
    forcing: bool = True
    #: Run the reference twice, for the noise floor.
    again: bool = True


class PlannedArm(NamedTuple):
    """One arm of a run, in the order in which they run."""

    topology: Topology
    side: Side
    role: str
    profile: str
    #: Instead of the plan's suite.
    suite: Suite | None = None


@dataclass(frozen=True)
class Plan:
    """A checked run: nothing in it can still be a mistake of the caller."""

    options: Options
    model: Model
    suite: Suite
    topologies: tuple[Topology, ...]
    arms: tuple[PlannedArm, ...]
    #: Model of each profile.
    models: Mapping[str, Model]
    #: Workload -> why this run leaves it out.
    not_run: Mapping[str, NotRun]
    #: Name of an arm -> its ``VLLM_RAY_BUNDLE_INDICES``.
    bundle_indices: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def report_dir(self) -> Path:
        """Where the run writes."""
        return self.options.report_dir

    @property
    def steps(self) -> int:
        """The arms, and Ray's start where the run starts it."""
        return len(self.arms) + int(self.starts_ray)

    def timeout_s(self, arm: PlannedArm) -> float:
        """Return after how many seconds *arm* counts as hanging: engines of one are several."""
        suite = arm.suite or self.suite
        return self.options.arm_timeout_s * suite.profile(arm.profile).engines

    @property
    def needs_ray(self) -> bool:
        """Whether an arm runs on Ray."""
        return any(arm.side.backend != MP for arm in self.arms)

    @property
    def reference(self) -> Side:
        """The side that is taken as right."""
        return self.arms[0].side

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
    if options.inject_fault is not None and options.inject_fault not in faults.FAULTS:
        raise unknown("fault", options.inject_fault, faults.FAULTS)
    parse_tolerances(options.tolerances)
    if options.ray_address is not None and not options.ray_address.strip():
        raise UsageError("--ray-address is empty. Give ip:port, or leave it out.")
    refuse_reserved(options.engine_args, RESERVED_ENGINE_ARGS)
    if options.trace and options.engine_core != "inproc":
        raise UsageError(
            "--trace sees the steps of an engine core in the arm's own process. Leave out "
            "--engine-core process."
        )
    mine = options.requests
    suite = load_suite(options.suite) if mine is None else load_requests(mine)
    topologies = tuple(dict.fromkeys(parse_topology(text) for text in options.topologies))
    settings = read_settings()

    reference = resolve(options.reference)
    candidates = list(dict.fromkeys(resolve(text) for text in options.candidates))
    _check_async_scheduling(options.engine_args, [reference, *candidates])
    bundle_indices = bundle_lists(options.bundle_indices, [reference, *candidates], topologies)
    not_run = _not_run(suite, [reference, *candidates])
    profiles = [
        profile
        for profile in suite.used_profiles()
        if any(workload.name not in not_run for workload in suite.of_profile(profile))
    ]
    if not profiles:
        raise UsageError(
            f"Suite {suite.name}: no workload can run here: "
            + "; ".join(f"{name}: {one.told}" for name, one in not_run.items())
        )
    arms = tuple(
        PlannedArm(topology, side, role, profile)
        for topology in topologies
        for profile in profiles
        for side, role in (
            (reference, REFERENCE),
            *((candidate, CANDIDATE) for candidate in candidates),
            *([(reference, AGAIN)] if options.again else []),
        )
    )
    if options.ray_address is not None and any(s.python for s in (reference, *candidates)):
        raise UsageError(
            "--ray-address goes with this environment alone: Ray wants the same Python and Ray on "
            "both ends. Leave it out, and each environment gets a cluster of its own."
        )
    model = find_model(options.model)
    models = {name: _model_of(suite.profile(name), model) for name in profiles}
    for topology in topologies:
        for one in models.values():
            topology.check(one.heads, one.layers, one.name)
    folder.check(options.report_dir)
    return Plan(
        options=options,
        model=model,
        suite=suite,
        topologies=topologies,
        arms=arms,
        models=models,
        not_run=not_run,
        bundle_indices=bundle_indices,
        remarks=tuple(describe_unknown(name) for name in settings.unknown),
    )


def _check_async_scheduling(engine_args: Mapping[str, Any], sides: Sequence[Side]) -> None:
    """Refuse it with legacy, which has none: vLLM would turn it off in that arm, and say so.

    Raises:
        UsageError: it is asked for, and legacy is an arm.
    """
    without = [side.name for side in sides if side.kind == Backend.LEGACY.value]
    if engine_args.get("async_scheduling") and without:
        raise UsageError(
            f"--engine-arg async_scheduling: {without[0]} has no async scheduling. Compare v2 with "
            "mp: --reference mp --candidate v2."
        )


def _not_run(suite: Suite, sides: Sequence[Side]) -> dict[str, NotRun]:
    """Return the workloads that one of the sides cannot run: all arms leave out the same."""
    found: dict[str, NotRun] = {}
    for workload in suite.workloads:
        for one in (*suite.profile(workload.profile).unavailable, *workload.unavailable):
            if any(one.applies(side.kind, side.platform, side.vllm) for side in sides):
                told = NotRun(
                    workload=workload.name,
                    requests=len(workload.requests),
                    backend=one.backend,
                    platform=one.on,
                    why=one.why,
                    source=one.source,
                )
                found.setdefault(workload.name, told)
    return found


def _model_of(profile: Profile, model: Model) -> Model:
    """Return the model of a profile: its own where it names one."""
    return model if profile.model is None else find_model(profile.model)


def refuse_reserved(given: Iterable[str], reserved: Mapping[str, str]) -> None:
    """Refuse engine arguments that a run sets itself.

    Args:
        given: names that the caller has set.
        reserved: name -> what it is set from.

    Raises:
        UsageError: one of them is.
    """
    for name in set(given) & set(reserved):
        raise UsageError(
            f"--engine-arg {name} cannot be set: the run sets it itself, from {reserved[name]}."
        )


def parse_engine_core(text: str) -> EngineCore:
    """Parse ``inproc`` or ``process``.

    Raises:
        UsageError: another word (with a suggestion).
    """
    for core in ENGINE_CORES:
        if text == core:
            return core
    raise unknown("engine core", text, ENGINE_CORES)


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
            parsed[name] = json.loads(value, parse_constant=_no_constant)
        except json.JSONDecodeError:
            parsed[name] = value
    return parsed


def _no_constant(text: str) -> Any:
    """Refuse NaN and Infinity, which Python's parser takes and JSON has not."""
    raise UsageError(f"--engine-arg: {text} is no JSON number.")
