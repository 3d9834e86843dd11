"""What a benchmark is asked for, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_ray_compat.bench.conclude import FEWEST_PASSES
from vllm_ray_compat.bench.floor import FLOORS, needs_ray
from vllm_ray_compat.bench.result import Kind, Role
from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.backends import MP
from vllm_ray_compat.parity.models import Model, find_model
from vllm_ray_compat.parity.plan import RESERVED_ENGINE_ARGS, EngineCore, refuse_reserved
from vllm_ray_compat.parity.sides import Side, resolve
from vllm_ray_compat.parity.topology import Topology, parse_topology
from vllm_ray_compat.settings import describe_unknown, read_settings

_OF_CONTROL_PLANE = {"worker_cls": "the workers that do nothing"}


@dataclass(frozen=True)
class Measure:
    """A measurement that is taken in each turn: what it is called, and what the arm is asked."""

    key: str
    measure: str
    how: Mapping[str, Any]


@dataclass(frozen=True)
class PlannedArm:
    """An arm; a floor has no side."""

    name: str
    backend: str
    side: Side | None = None

    @property
    def on_ray(self) -> bool:
        """Whether it needs a Ray cluster."""
        return needs_ray(self.backend) if self.side is None else self.side.kind != MP


@dataclass(frozen=True)
class Options:
    """What the command line gives.

    Attributes:
        kind: what is measured.
        reference: the backend that the others are set against.
        candidates: those others.
        floors: names of :data:`~.floor.FLOORS`; only with a control plane.
        topologies: texts such as ``tp2``.
        measures: taken in each turn, in order.
        model: see :func:`vllm_ray_compat.parity.models.find_model`.
        engine_args: of vLLM, for all arms.
        engine_core: ``inproc`` or ``process``.
        passes: how often each arm is measured in each topology.
        keep: start the engines once, side by side.
        at_most_s: no pass of a topology begins later than this, from the topology's first turn.
        margin: the loss that counts as none.
        arm_timeout_s: for a start and for each measurement.
        report_dir: of the result, the plot and the logs.
    """

    kind: Kind
    reference: str
    candidates: tuple[str, ...]
    topologies: tuple[str, ...]
    measures: tuple[Measure, ...]
    report_dir: Path
    floors: tuple[str, ...] = ()
    model: str = "tiny"
    engine_args: dict[str, Any] = field(default_factory=dict)
    engine_core: EngineCore = "inproc"
    passes: int = 6
    keep: bool = False
    at_most_s: float = 3600
    margin: float = 0.01
    arm_timeout_s: float = 300.0


@dataclass(frozen=True)
class BenchPlan:
    """A checked plan; the first arm is the reference."""

    options: Options
    model: Model
    topologies: tuple[Topology, ...]
    arms: tuple[PlannedArm, ...]
    remarks: tuple[str, ...]

    @property
    def steps(self) -> int:
        """The turns of all topologies."""
        return len(self.topologies) * len(self.arms) * self.options.passes

    @property
    def report_dir(self) -> Path:
        """Where the run writes."""
        return self.options.report_dir

    @property
    def candidates(self) -> list[str]:
        """The names of those that are set against the reference."""
        return [arm.name for arm in self.arms[1:] if arm.side is not None]

    def role(self, arm: PlannedArm) -> Role:
        """Return ``reference``, ``candidate`` or ``floor``."""
        if arm.side is None:
            return "floor"
        return "reference" if arm is self.arms[0] else "candidate"


def plan(options: Options) -> BenchPlan:
    """Check *options*.

    Raises:
        UsageError: something does not exist, or cannot be.
        UnusableEnvironmentError: the environment lacks what an arm needs.
    """
    if not 0 < options.margin < 1:
        raise UsageError(f"--margin {options.margin:g} is no fraction: 0.01 is 1 %.")
    control_plane = options.kind == "control-plane"
    refuse_reserved(
        options.engine_args, RESERVED_ENGINE_ARGS | (_OF_CONTROL_PLANE if control_plane else {})
    )
    for floor in options.floors:
        if floor not in FLOORS:
            raise unknown("floor", floor, FLOORS)
    topologies = _unique([parse_topology(text) for text in options.topologies], "topology")
    sides = _unique([resolve(text) for text in (options.reference, *options.candidates)], "backend")
    names = [side.name for side in sides]
    if len(set(names)) < len(names):
        # Two classes of one name, from two modules.
        names = [f"{side.name} ({side.backend.partition(':')[0]})" for side in sides]
    model = find_model(options.model)
    for topology in topologies:
        topology.check(model.heads, model.layers, model.name)
    return BenchPlan(
        options=options,
        model=model,
        topologies=tuple(topologies),
        arms=(
            *(PlannedArm(n, s.backend, s) for n, s in zip(names, sides, strict=True)),
            *(PlannedArm(name, name) for name in options.floors),
        ),
        remarks=tuple(describe_unknown(name) for name in read_settings().unknown),
    )


def remarks(options: Options, load: float, cores: int) -> list[str]:
    """Return what a person should know of figures that are taken so."""
    told = []
    if options.passes < FEWEST_PASSES:
        told.append(
            f"With fewer than {FEWEST_PASSES} passes no test can show anything, whatever is "
            "measured; six give an interval, too."
        )
    if load > 0.5 * cores:
        told.append(
            f"The machine was not quiet when the run began: load {load:.1f} on {cores} cores. "
            "Intervals get wide, and tests show less."
        )
    return told


def _unique(found: Sequence[Any], kind: str) -> Sequence[Any]:
    for number, one in enumerate(found):
        if one in found[:number]:
            raise UsageError(
                f"The {kind} {getattr(one, 'name', one)} is asked for twice. Name each once."
            )
    return found
