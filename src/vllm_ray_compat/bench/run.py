"""Run a planned benchmark; what was measured is on disk after every turn."""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from vllm_ray_compat.bench.machine import Machine, this_machine
from vllm_ray_compat.bench.plan import BenchPlan, remarks
from vllm_ray_compat.bench.protocol import Ready
from vllm_ray_compat.bench.report import JSON, MARKDOWN, PLOT
from vllm_ray_compat.bench.result import ArmResult, Bench, Turn, compared
from vllm_ray_compat.bench.turns import TopologyRun, remove_logs
from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity import folder as reports
from vllm_ray_compat.parity.interrupt import StopRequest
from vllm_ray_compat.parity.progress import Display
from vllm_ray_compat.parity.redaction import redact
from vllm_ray_compat.parity.report.files import write_whole

_PREFIXES = ("VLLM_", "NCCL_", "OMP_", "RAYCOMPAT_", "RAY_CGRAPH", "CUDA_")
#: Marks a folder as written by this tool.
MARKER = ".vllm-ray-compat-bench"


def run(plan: BenchPlan, display: Display, stop: StopRequest, command: str) -> Bench:
    """Measure, and return the result, which is in ``bench.json`` by then.

    Args:
        plan: what to measure.
        display: told of each step.
        stop: asked while waiting.
        command: what was entered, for the result.

    Raises:
        UsageError: the folder cannot be written.
        ArmDiedError: an arm ended; ``bench.json`` has the turns before.
        InterruptedRunError: likewise.
    """
    folder = prepare(plan)
    machine = this_machine()
    started_at, began = time.time(), time.monotonic()
    turns: list[Turn] = []
    about: dict[tuple[str, str], Ready] = {}

    def result(complete: bool) -> Bench:
        return _result(plan, machine, turns, about, command, started_at, began, complete)

    for topology in plan.topologies:
        measured = TopologyRun(plan, topology, stop, display)
        for turn in measured.take(began):
            turns.append(turn)
            about |= {(str(topology), name): ready for name, ready in measured.about.items()}
            write_whole(folder / JSON, result(complete=False).to_json())
    bench = result(complete=True)
    write_whole(folder / JSON, bench.to_json())
    return bench


def _variables() -> dict[str, str]:
    kept = environment.base_environment(os.environ, cpu=False)
    return {
        name: value
        for name, value in sorted(redact(os.environ).items())
        if name.startswith(_PREFIXES) and name in kept
    }


def prepare(plan: BenchPlan) -> Path:
    """Make the report folder, and remove what an earlier run left in it.

    Raises:
        UsageError: it is a file, holds something else, or cannot be written.
    """
    folder = plan.options.report_dir
    reports.check(folder, MARKER, "a benchmark")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text(
            "Written by vllm-ray-compat bench; the next run into this folder replaces it.\n",
            encoding="utf-8",
        )
        for name in (JSON, MARKDOWN, PLOT):
            (folder / name).unlink(missing_ok=True)
        remove_logs(folder, plan)
    except OSError as error:
        raise reports.unusable(folder, error) from None
    return folder


def _result(
    plan: BenchPlan,
    machine: Machine,
    turns: Sequence[Turn],
    about: dict[tuple[str, str], Ready],
    command: str,
    started_at: float,
    began: float,
    complete: bool,
) -> Bench:
    options = plan.options
    reference = plan.arms[0].name
    arms, comparisons = [], {}
    for topology in map(str, plan.topologies):
        mine = [turn for turn in turns if turn.topology == topology]
        if not mine:
            continue
        for arm in plan.arms:
            measured = [turn.measured for turn in mine if turn.arm == arm.name]
            if measured:
                arms.append(
                    ArmResult(
                        topology=topology,
                        name=arm.name,
                        role=plan.role(arm),
                        backend=arm.backend,
                        about=about[topology, arm.name],
                        medians={k: statistics.median(m[k] for m in measured) for k in measured[0]},
                    )
                )
        comparisons[topology] = compared(mine, reference, plan.candidates, options.margin)
    return Bench(
        kind=options.kind,
        package=importlib.metadata.version("vllm-ray-compat"),
        started_at=round(started_at, 1),
        took_s=round(time.monotonic() - began, 1),
        complete=complete,
        command=command,
        machine=machine,
        engines="kept" if options.keep else "fresh",
        engine_core=options.engine_core,
        engine_args=options.engine_args,
        variables=_variables(),
        margin=options.margin,
        arms=arms,
        comparisons=comparisons,
        turns=list(turns),
        remarks=remarks(options, machine.load_before, machine.cores),
    )
