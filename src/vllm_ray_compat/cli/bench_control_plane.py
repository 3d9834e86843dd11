"""``vllm-ray-compat bench control-plane``: executors over workers that do nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vllm_ray_compat.cli import bench

_SIZES = (1, 2, 4, 8)
_PATHS = ("rpc", "step")
_PAYLOADS = ("small", "large")


def control_plane(
    reference: bench.Reference = "mp",
    candidate: bench.Candidate = None,
    world_size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Workers; repeatable. Default: 1, 2, and 4 and 8 with the cores."),
    ] = None,
    floors: Annotated[
        bool,
        typer.Option(
            help="Also measure what the machine can do: pyzmq, shared memory, Ray's actors and "
            "Compiled Graph without vLLM."
        ),
    ] = True,
    calls: Annotated[int, typer.Option(min=10, help="Round trips of each kind in a turn.")] = 1000,
    model: bench.Model = "tiny",
    engine_arg: bench.EngineArg = None,
    passes: bench.Passes = 6,
    keep: bench.Keep = False,
    at_most: bench.AtMost = 3600,
    margin: bench.Margin = 0.01,
    arm_timeout: bench.ArmTimeout = 300,
    report_dir: bench.ReportDir = Path("bench-report"),
    save_baseline: bench.SaveBaseline = None,
    against: bench.Against = None,
    require_no_overhead: bench.RequireNoOverhead = False,
    as_json: bench.AsJson = False,
) -> None:
    """Compare the round trips of executors whose workers do nothing, with intervals.

    'rpc' is a broadcast to all workers and the answers of all, 'step' what an engine does for each
    step; 'small' is a step of 8 requests that decode, 'large' one of 264 with 8 new prompts. Exit
    codes as of `bench decode`.
    """
    from vllm_ray_compat.bench.floor import FLOORS
    from vllm_ray_compat.bench.plan import Measure, Options
    from vllm_ray_compat.parity.plan import parse_engine_args

    sizes = world_size or [size for size in _SIZES if size <= max(2, os.cpu_count() or 1)]
    bench.measure(
        Options(
            kind="control-plane",
            reference=reference,
            candidates=tuple(candidate or bench.others_than(reference)),
            topologies=tuple(f"tp{size}" for size in sizes),
            measures=tuple(
                Measure(
                    f"{path}.{payload}",
                    "round_trip",
                    {"path": path, "payload": payload, "calls": calls},
                )
                for path in _PATHS
                for payload in _PAYLOADS
            ),
            floors=tuple(FLOORS) if floors else (),
            report_dir=report_dir,
            model=model,
            engine_args=parse_engine_args(engine_arg or ()),
            passes=passes,
            keep=keep,
            at_most_s=at_most,
            margin=margin,
            arm_timeout_s=arm_timeout,
        ),
        save_baseline=save_baseline,
        against=against,
        require_no_overhead=require_no_overhead,
        as_json=as_json,
    )
