#!/usr/bin/env python3
"""Count the false alarms of real runs that differ in nothing: engines started anew each time.

    python scripts/false_alarms.py --runs 50 [--backend v2 --backend legacy] [--topology tp2]

Records the suite once for each backend as what the others are held against, and then ``--runs``
times more, the backends in turn. Every recording has engines (and a Ray cluster) of its own, and is
compared with the first of its backend by ``parity compare``. Prints a line a run and one JSON
object; exits 0 without an alarm, 1 with one, 3 when a recording could not be made. A capture that
raised an alarm is kept, in the folder that is named.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from recording import CLI, record

from vllm_ray_compat.parity.statistics import smallest_fraction


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--backend", action="append", help="repeatable; default: v2 and legacy")
    parser.add_argument("--topology", default="tp2")
    parser.add_argument("--suite", default="smoke")
    parser.add_argument("--at-most", type=float, default=1e9, help="minutes; then no further run")
    options = parser.parse_args()
    backends = options.backend or ["v2", "legacy"]

    work = Path(tempfile.mkdtemp(prefix="raycompat-false-alarms-"))
    alarms: list[str] = []
    took: list[float] = []
    for backend in backends:
        took.append(record(backend, options.topology, options.suite, work / f"{backend}-0"))
        print(f"{backend}: the first one, {took[-1]:.0f} s", flush=True)
    began = time.monotonic()
    done = 0
    for number in range(1, options.runs + 1):
        if time.monotonic() - began > options.at_most * 60:
            break
        backend = backends[number % len(backends)]
        folder = work / f"{backend}-{number}"
        took.append(record(backend, options.topology, options.suite, folder))
        done = number
        found = subprocess.run(
            [*CLI, "compare", str(work / f"{backend}-0"), str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"{number} {backend}: exit code {found.returncode}, {took[-1]:.0f} s", flush=True)
        if found.returncode:
            alarms.append(str(folder))
            print(found.stdout, found.stderr, sep="\n", flush=True)
        else:
            shutil.rmtree(folder)
    told = {
        "suite": options.suite,
        "topology": options.topology,
        "backends": backends,
        "runs": done,
        "false_alarms": len(alarms),
        # what a rate of alarms can still be, at 95 %, when there was none
        "rate_at_most": None if alarms else smallest_fraction(done),
        "recording_median_s": round(statistics.median(took), 1),
        "kept": alarms,
    }
    print(json.dumps(told))
    if not alarms:
        shutil.rmtree(work)
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
