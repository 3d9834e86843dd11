#!/usr/bin/env python3
"""Measure what sharing engines among the workloads of a suite saves.

    python scripts/wall_time.py [--backend v2] [--topology tp2] [--report FOLDER]

Records some workloads of suite `full` that share a profile, all in one engine, and then each in an
engine of its own, as test suites do that start an engine a case. Both are whole commands (`parity
record`), each with a Ray cluster of its own; from the two follow the seconds that an engine costs.
With the report of a run of the whole suite (``--report``) it says, too, what that run would have
taken with an engine for each workload, by the run's own times. Prints one JSON object; times in
seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from recording import record

from vllm_ray_compat.parity.capture import of_suite
from vllm_ray_compat.parity.workloads import load_suite

WORKLOADS = ("greedy", "logprobs", "stop", "structured", "abort")


def arithmetic(report: Path) -> dict[str, Any]:
    """Return what the run of *report* took, and what it would take with an engine a workload.

    An arm is a start and its workloads. One with n of them would be n starts like its own, and
    the same workloads.
    """
    found = json.loads((report / "report.json").read_text(encoding="utf-8"))
    arms = [arm["timings"] for arm in found["arms"] if arm["failure"] is None]
    work = [sum(arm["workloads_s"].values()) for arm in arms]
    counts = [len(set(map(of_suite, arm["workloads_s"]))) for arm in arms]
    starts = [arm["total_s"] - its for arm, its in zip(arms, work, strict=True)]
    shared = sum(starts) + sum(work)
    alone = sum(n * start for n, start in zip(counts, starts, strict=True)) + sum(work)
    return {
        "arms": len(arms),
        "starts_with_an_engine_each": sum(counts),
        "start_mean_s": round(sum(starts) / len(arms), 1),
        "work_s": round(sum(work)),
        "shared_s": round(shared),
        "engine_each_s": round(alone),
        "times_shorter": round(alone / shared, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", default="v2")
    parser.add_argument("--topology", default="tp2")
    parser.add_argument("--report", type=Path, help="folder of a run of the whole suite")
    options = parser.parse_args()

    suite = load_suite("full").model_dump(mode="json", by_alias=True, exclude_unset=True)
    chosen = [w for w in suite["workloads"] if w["name"] in WORKLOADS]
    with tempfile.TemporaryDirectory(prefix="raycompat-wall-time-") as folder:
        parts = {"together": chosen, **{w["name"]: [w] for w in chosen}}
        took = {}
        for name, workloads in parts.items():
            file = Path(folder) / f"{name}.json"
            file.write_text(json.dumps({**suite, "workloads": workloads}), encoding="utf-8")
            report = Path(folder) / name
            took[name] = record(options.backend, options.topology, str(file), report)
            print(f"{name}: {took[name]:.1f} s", file=sys.stderr, flush=True)
    together = took.pop("together")
    each = sum(took.values())
    # n engines and the work, less one engine and the work
    engine_s = (each - together) / (len(took) - 1)
    told: dict[str, Any] = {
        "workloads": list(took),
        "together_s": round(together, 1),
        "engine_each_s": round(each, 1),
        "times_shorter": round(each / together, 2),
        "one_engine_s": round(engine_s, 1),
    }
    if options.report is not None:
        told["whole_suite"] = arithmetic(options.report)
    print(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
