#!/usr/bin/env python3
"""Measure what comparing two large captures takes: memory and time.

    python scripts/compare_large.py --mb 1000 [--differ one|all] [--disorder] [--small]

Writes two captures of that size into a temporary folder (TMPDIR), compares them in a process of
its own, and prints one JSON object: the size of each capture, the time it took, MB of both together
for a second of processor time, and the most memory that process ever held (MB), of which
``at_start_mb`` was there before it began.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

COMPARE = """
import json, sys, time
from pathlib import Path
from vllm_ray_compat.parity.compare import compare_sources
from vllm_ray_compat.parity.stored import StoredCapture

def peak():  # of this process alone; getrusage() would count its parent's in
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) / 1024  # KiB to MB

before, began, cpu = peak(), time.monotonic(), time.process_time()
with StoredCapture(Path(sys.argv[1])) as a, StoredCapture(Path(sys.argv[2])) as b:
    found = compare_sources("tp2", a, b)
print(json.dumps({
    "seconds": round(time.monotonic() - began, 1),
    "cpu_seconds": round(time.process_time() - cpu, 1),
    "peak_mb": round(peak()), "at_start_mb": round(before),
    "requests": found.requests, "tokens": found.tokens, "different": found.different,
    "kept": len(found.comparisons), "left_out": found.equal_left_out + found.others_left_out,
}))
"""


def body(draw: random.Random, small: bool, changed: bool) -> str:
    """What follows the names of a result of 200 tokens with five logprobs each, up to its times.

    With *small* it has 4 tokens without; with *changed* one token is another.
    """
    tokens = [draw.randrange(150_000) for _ in range(4 if small else 200)]
    entries = [
        [[t, -draw.random(), 1]]
        + [[draw.randrange(150_000), -draw.random() * 9, rank] for rank in range(2, 6)]
        for t in tokens
    ]
    tokens[2] ^= changed
    output = {
        "index": 0,
        "token_ids": tokens,
        "text": "lorem ipsum " * len(tokens),
        "finish_reason": "length",
        "stop_reason": None,
        "cumulative_logprob": -draw.random() * 100,
        "logprobs": None if small else entries,
    }
    rest = {
        "outputs": [output],
        "prompt_token_ids": tokens[3:19],
        "prompt_logprobs": None,
        "num_cached_tokens": 0,
        "error": None,
    }
    return json.dumps(rest)[1:-1]


def write(paths: tuple[Path, Path], size: int, differ: str, disorder: bool, small: bool) -> None:
    """Write both captures: a hundred answers in turn, each under a name and with times of its own.

    *size* counts the bytes of the first one.
    """
    header = {
        "kind": "header", "schema": "vllm_ray_compat.capture/2", "role": "reference",
        "backend": "legacy", "topology": "tp2", "suite": "large", "model": "m",
        "engine_core": "inproc", "started_at": 0.0,
    }  # fmt: skip
    end = {"kind": "end", "workloads_s": {}, "shutdown_s": 0.0, "total_s": 0.0}
    bodies = [body(random.Random(i), small, False) for i in range(100)]
    changed = [body(random.Random(i), small, True) for i in range(100)]
    draw = random.Random(0)

    def line(number: int, text: str) -> str:
        times = [draw.random() for _ in range(4)] * (1 if small else 50)
        return (
            f'{{"kind": "result", "workload": "w{number // 100_000}", '
            f'"request": "request-{number}", {text}, "token_times_s": {times}}}\n'
        )

    held: list[str] = []
    with paths[0].open("w") as left, paths[1].open("w") as right:
        for file in (left, right):
            file.write(json.dumps(header) + "\n")
        number = written = 0
        while written < size:
            written += left.write(line(number, bodies[number % 100]))
            other = differ == "all" or (differ == "one" and number == 7)
            held.append(line(number, (changed if other else bodies)[number % 100]))
            number += 1
            if len(held) == 1000 or written >= size:
                right.writelines(reversed(held) if disorder else held)
                held.clear()
        for file in (left, right):
            file.write(json.dumps(end) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000, help="size of each capture")
    parser.add_argument("--differ", choices=("none", "one", "all"), default="one")
    parser.add_argument("--disorder", action="store_true", help="blocks of 1000 results reversed")
    parser.add_argument("--small", action="store_true", help="many small results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raycompat-large-") as folder:
        paths = Path(folder) / "a.jsonl", Path(folder) / "b.jsonl"
        write(paths, options.mb * 1_000_000, options.differ, options.disorder, options.small)
        done = subprocess.run(
            [sys.executable, "-c", COMPARE, *map(str, paths)],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout)
        size = paths[0].stat().st_size
    found["capture_mb"] = round(size / 1e6)
    found["mb_per_cpu_s"] = round(2 * size / 1e6 / max(found["cpu_seconds"], 0.1))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
