"""``vllm-ray-compat bench decode``: whole engines, with the executors side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_ray_compat.cli import bench


def decode(
    reference: bench.Reference = "mp",
    candidate: bench.Candidate = None,
    topology: Annotated[
        list[str] | None, typer.Option(help="tpN, ppN or tpNppN; repeatable. Default: tp2.")
    ] = None,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests decoded at once; repeatable. Default: 1, 8 and 32."),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01,
            help="Requests that arrive in a second (a Poisson process); repeatable. Default: 8.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that each request generates.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Batches of each size in a turn.")] = 4,
    requests: Annotated[int, typer.Option(min=2, help="Requests at each rate in a turn.")] = 40,
    engine_core: Annotated[
        str,
        typer.Option(help="'inproc': no other process steps. 'process': as in production."),
    ] = "inproc",
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
    """Compare decode throughput, TTFT, ITL and starts of executors, with intervals.

    The arms take turns, A B C C B A, each in a process of its own. Exits 0; 1 for a regression
    (--against), for an overhead (--require-no-overhead) or when an arm dies; 2 for wrong usage; 3
    when this environment cannot run it.
    """
    from vllm_ray_compat.bench.plan import Measure, Options
    from vllm_ray_compat.parity.plan import parse_engine_args, parse_engine_core

    sizes = dict.fromkeys(batch_size or (1, 8, 32))
    rates = dict.fromkeys(rate or (8.0,))
    bench.measure(
        Options(
            kind="decode",
            reference=reference,
            candidates=tuple(candidate or bench.others_than(reference)),
            topologies=tuple(topology or ("tp2",)),
            measures=(
                *(
                    Measure(
                        f"batch{size}",
                        "batch",
                        {"size": size, "tokens": tokens, "repeats": repeats},
                    )
                    for size in sizes
                ),
                *(
                    Measure(
                        f"rate{one:g}",
                        "arrivals",
                        {"rate": one, "requests": requests, "tokens": tokens},
                    )
                    for one in rates
                ),
            ),
            report_dir=report_dir,
            model=model,
            engine_args=parse_engine_args(engine_arg or ()),
            engine_core=parse_engine_core(engine_core),
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
