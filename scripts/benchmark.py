#!/usr/bin/env python3
"""Measure what this package costs a process: python scripts/benchmark.py [--runs N]

Prints, as medians of N runs in one interleaved series:
  status        the whole command `vllm-ray-compat status --json`, and an empty Python beside it
  importtime    which of vllm, ray and torch `status` imports (`python -X importtime`): none
  plugin        what loading the plugin adds to a vLLM process, from its entry point as vLLM loads
                it, in a process where vLLM is imported (forked, so that each run is the first)
Budgets (README): status 150 ms, plugin 5 ms. Not a test: this machine's timings are noisy.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

FORBIDDEN = ("vllm", "ray", "torch")


def wall_ms(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def line(name: str, values: list[float], budget: float | None = None) -> None:
    middle = statistics.median(values)
    text = f"{name:<16} median {middle:7.1f} ms  min {min(values):7.1f}  max {max(values):7.1f}"
    if budget is not None:
        text += f"  budget {budget:g}: {'holds' if middle <= budget else 'BROKEN'}"
    print(text)


def measure_status(runs: int) -> None:
    status = [sys.executable, "-m", "vllm_ray_compat", "status", "--json"]
    empty = [sys.executable, "-c", "pass"]
    taken: dict[str, list[float]] = {"status": [], "empty": []}
    wall_ms(status)  # the first run reads from disk
    for _ in range(runs):
        taken["status"].append(wall_ms(status))
        taken["empty"].append(wall_ms(empty))
    line("status --json", taken["status"], 150)
    line("empty Python", taken["empty"])

    done = subprocess.run(
        [sys.executable, "-X", "importtime", *status[1:]],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {
        m.strip().partition(".")[0] for m in re.findall(r"\|([^|]+)$", done.stderr, re.MULTILINE)
    }
    found = [name for name in FORBIDDEN if name in imported]
    names = ", ".join(FORBIDDEN)
    print(f"{'importtime':<16} {len(imported)} top-level modules; of {names}: {found or 'none'}")


def measure_plugin(runs: int) -> None:
    import vllm.engine.arg_utils  # noqa: F401

    taken = []
    for _ in range(runs):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            from importlib.metadata import entry_points

            (entry,) = entry_points(group="vllm.general_plugins", name="vllm_ray_compat")
            before = set(sys.modules)
            began = time.perf_counter()
            entry.load()()
            took = (time.perf_counter() - began) * 1000
            new = {n for n in set(sys.modules) - before if n.partition(".")[0] in FORBIDDEN}
            os.write(write, f"{took} {sorted(new)}".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            took_text, _, new_text = pipe.read().partition(" ")
        os.waitpid(pid, 0)
        taken.append(float(took_text))
        if new_text != "[]":
            print(f"BROKEN: the plugin imported {new_text}")
    line("plugin load", taken, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    measure_status(runs)
    measure_plugin(runs)


if __name__ == "__main__":
    main()
