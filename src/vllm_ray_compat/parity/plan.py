"""Check a parity run: everything that can be wrong is found before anything starts."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vllm_ray_compat.errors import UnusableEnvironmentError, UsageError, unknown
from vllm_ray_compat.executors import catalog
from vllm_ray_compat.flag import Flag, FlagValue
from vllm_ray_compat.parity import faults, folder
from vllm_ray_compat.parity.arm import MP, MP_EXECUTOR, is_class
from vllm_ray_compat.parity.models import Model, find_model
from vllm_ray_compat.parity.tolerance import parse_tolerances
from vllm_ray_compat.parity.topology import Topology, parse_topology
from vllm_ray_compat.parity.workloads import Suite, load_suite
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import select
from vllm_ray_compat.settings import Settings, describe_unknown, read_settings
from vllm_ray_compat.vllm_api import Installation, find_vllm

BACKENDS: tuple[str, ...] = (Backend.LEGACY.value, Backend.V2.value, MP)

#: Engine arguments that a run sets itself, and from what.
RESERVED_ENGINE_ARGS = {
    "model": "--model",
    "tensor_parallel_size": "--topology",
    "pipeline_parallel_size": "--topology",
    "distributed_executor_backend": "--reference and --candidate",
    "worker_extension_cls": "the probe that describes the workers",
    "async_scheduling": "the pins of all arms",
}

#: The roles of an arm.
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
    tolerances: Sequence[str] = ()
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
    remarks: tuple[str, ...] = ()

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
    parse_tolerances(options.tolerances)
    if options.ray_address is not None and not options.ray_address.strip():
        raise UsageError("--ray-address is empty. Give ip:port, or leave it out.")
    for name in set(options.engine_args) & set(RESERVED_ENGINE_ARGS):
        raise UsageError(
            f"--engine-arg {name} cannot be set: the run sets it itself, from "
            f"{RESERVED_ENGINE_ARGS[name]}."
        )
    suite = load_suite(options.suite)
    topologies = tuple(dict.fromkeys(parse_topology(text) for text in options.topologies))
    settings = read_settings()

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
    vllm = find_vllm()
    if backends != {MP} and importlib.util.find_spec("ray") is None:
        raise RayMissingError
    executors = {backend: _executor(vllm, backend) for backend in backends}
    model = find_model(options.model)
    for topology in topologies:
        topology.check(model.heads, model.layers, model.name)
    folder.check(options.report_dir)
    return Plan(
        options=options,
        vllm=vllm,
        model=model,
        suite=suite,
        topologies=topologies,
        executors=executors,
        arms=arms,
        cpu=vllm.is_cpu_build,
        remarks=tuple(describe_unknown(name) for name in settings.unknown),
    )


def _check_class(backend: str) -> None:
    """Check that a backend given as ``module:Class`` has a module, without importing it.

    Raises:
        UsageError: it has none.
    """
    module, _, name = backend.partition(":")
    try:
        found = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        found = None
    if found is None or not name.isidentifier():
        raise UsageError(
            f"Backend {backend!r} names no executor class: give module:Class, or one of "
            f"{', '.join(BACKENDS)}."
        )


def _executor(vllm: Installation, backend: str) -> str:
    """Return the class that the arm of *backend* must turn out to run."""
    if backend == MP:
        return MP_EXECUTOR
    if is_class(backend):
        return backend
    value = FlagValue.OFF if backend == Backend.LEGACY.value else FlagValue.ON
    here = read_settings()
    settings = Settings(
        restore_legacy=True, repairs=here.repairs, unwanted_repairs=here.unwanted_repairs
    )
    decision = select(vllm, flag=Flag(value), settings=settings)
    if not catalog.is_present(decision):
        raise catalog.ExecutorMissingError(catalog.missing_text(decision))
    return decision.loaded


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
