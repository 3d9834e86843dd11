#!/usr/bin/env python3
"""Compare the speed of two executors: python scripts/benchmark_executors.py [--help]

    python scripts/benchmark_executors.py --reference mp --candidate v2
    python scripts/benchmark_executors.py --reference legacy \
        --candidate vllm_ray_compat.executors.ray_legacy:RayLegacyExecutor

Both engines are started once, with the arguments of a parity run, and live side by side; they are
measured in turns, in rounds (A B, then B A, …), so that what changes on the machine changes for
both. A ratio is taken in each round; what counts is their median, with the 95 % interval that
order statistics give it (no assumption about how times are spread). Measured in a round:

  control plane  `collective_rpc` of a method that does nothing on all ranks: p50, calls a second
  decode         8 requests of 64 tokens, greedy: tokens a second, p50 of a step

Readers of vLLM's message queue spin for a second after their last message, so before a turn the
engines are waited for until they rest. What the one at rest burns meanwhile is measured and told.
Exit code 1 when a whole interval misses its budget. Not a test: timings of a busy machine are
noisy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from benchmark_ratios import conclude, table

from vllm_ray_compat.parity import environment
from vllm_ray_compat.parity.arm import ArmSpec
from vllm_ray_compat.parity.backends import MP, short_name
from vllm_ray_compat.parity.cluster import RayCluster, members
from vllm_ray_compat.parity.models import find_model
from vllm_ray_compat.parity.ownership import Segments, kill_all, session_members
from vllm_ray_compat.parity.plan import parse_engine_args
from vllm_ray_compat.parity.topology import parse_topology
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.vllm_api import find_vllm

SCHEMA = "vllm_ray_compat.benchmark_executors/1"

#: An engine at rest uses less than this share of one core.
RESTING = 0.05
#: Seconds an engine gets to come to rest; one that does not is told of in the result.
REST_WITHIN_S = 4.0
START_WITHIN_S = 240.0
ANSWER_WITHIN_S = 120.0


class ArmDiedError(Exception):
    """An arm ended or fell silent; the text has the end of its log."""


@dataclass
class Arm:
    """An engine in a process of its own, from the driver's side."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    about: dict[str, Any] = field(default_factory=dict)
    used: list[float] = field(default_factory=list)

    def ask(self, measure: str, **how: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"measure": measure, **how}) + "\n")
        self.process.stdin.flush()
        return self.answer(ANSWER_WITHIN_S)

    def answer(self, within_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard, _, _ = select.select([self.process.stdout], [], [], within_s)
        line = self.process.stdout.readline() if heard else ""
        if not line:
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            raise ArmDiedError(
                f"{self.name} {'ended' if heard else f'said nothing for {within_s:.0f} s'}. "
                "Its log ends:\n" + "\n".join(tail)
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def cpu_s(self) -> float:
        """Return the CPU time used so far by the engine and its workers."""
        whole = 0.0
        for pid in self.about["pids"]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(pid).cpu_times()
                whole += times.user + times.system
        return whole

    def end(self, segments: Segments, cluster: RayCluster | None) -> None:
        """Let the engine shut down, then end whatever is left of its process."""
        segments.note([*session_members(self.process.pid), *members(cluster)])
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=15 if self.about else 0)  # one that is starting hears nothing
        kill_all(session_members(self.process.pid), grace_s=2)
        self.process.wait()


def start(
    name: str, backend: str, options: argparse.Namespace, ray: dict[str, str], folder: Path
) -> Arm:
    cpu = find_vllm().is_cpu_build
    model = find_model("tiny")
    spec = ArmSpec(
        role=name,
        backend=backend,
        topology=options.topology,
        model=str(model.folder),
        suite=Path("smoke"),
        capture=Path(os.devnull),
        expected_executor="",
        engine_args={**model.engine_args, **parse_engine_args(options.engine_arg)},
    )
    environ = environment.arm_environment(
        environment.base_environment(os.environ, cpu=cpu),
        backend,
        engine_core="inproc",
        ray={} if backend == MP else ray,
        restore_legacy=backend == Backend.LEGACY.value and Backend.LEGACY not in find_vllm().ships,
    )
    log = folder / f"{name}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("benchmark_arm.py")),
                spec.model_dump_json(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            env=environ,
            start_new_session=True,
            text=True,
        )
    return Arm(f"{name} ({short_name(backend)})", process, log)


def come_to_rest(arms: list[Arm]) -> bool:
    """Wait until no engine uses the CPU; says whether they came to rest."""
    deadline = time.monotonic() + REST_WITHIN_S
    while time.monotonic() < deadline:
        before, began = [arm.cpu_s() for arm in arms], time.monotonic()
        time.sleep(0.3)
        took = time.monotonic() - began
        if all(arm.cpu_s() - b < RESTING * took for arm, b in zip(arms, before, strict=True)):
            return True
    return False


def autogroup() -> bool:
    """Say whether Linux shares the cores between sessions, which puts Ray's workers apart."""
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return False


def measure(arm: Arm, other: Arm, options: argparse.Namespace) -> dict[str, float]:
    """Take a turn: measure *arm*, and what *other* uses of the CPU meanwhile."""
    before, began = other.cpu_s(), time.monotonic()
    found = arm.ask("control_plane", calls=options.calls)
    found |= arm.ask("decode", repeats=options.repeats)
    other.used.append((other.cpu_s() - before) / (time.monotonic() - began))
    return found


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    backends = {"reference": options.reference, "candidate": options.candidate}
    on_ray = sum(backend != MP for backend in backends.values())
    cpu = find_vllm().is_cpu_build
    segments = Segments()
    with contextlib.ExitStack() as stack:
        stack.callback(segments.free)
        cluster, ray = None, {}
        if on_ray:
            cluster = stack.enter_context(
                RayCluster(
                    devices=on_ray * parse_topology(options.topology).world_size,
                    environ=environment.base_environment(os.environ, cpu=cpu),
                    log=folder / "ray.log",
                    fake_devices=cpu,
                )
            )
            ray = environment.own_cluster(cluster.address, cluster.node_ip, cluster.credentials)
        arms = []
        for name, backend in backends.items():
            arm = start(name, backend, options, ray, folder)
            stack.callback(arm.end, segments, cluster)
            arms.append(arm)
        for arm in arms:
            arm.about = arm.answer(START_WITHIN_S)
            print(
                f"{arm.name}: {arm.about['executor']}, started in {arm.about['start_s']} s",
                file=sys.stderr,
            )
        rounds, restless = [], 0
        deadline = time.monotonic() + options.at_most
        for number in range(options.rounds):
            if time.monotonic() > deadline:
                print("The time for rounds is over.", file=sys.stderr)
                break
            order = arms if number % 2 == 0 else arms[::-1]
            found = {}
            for arm in order:
                restless += not come_to_rest(arms)
                other = arms[1 - arms.index(arm)]
                found[arm.name.partition(" ")[0]] = measure(arm, other, options)
            rounds.append(found)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        segments.note([p for arm in arms for p in session_members(arm.process.pid)])
        segments.note(members(cluster))
        idle = {
            arm.name: {"median": statistics.median(arm.used), "max": max(arm.used)} for arm in arms
        }
        about = {name: arm.about for name, arm in zip(backends, arms, strict=True)}
    return {
        "schema": SCHEMA,
        "topology": options.topology,
        "rounds": len(rounds),
        "calls": options.calls,
        "arms": about,
        "autogroup": autogroup(),
        "cores_used_at_rest": idle,
        "turns_begun_without_rest": restless,
        "metrics": conclude(rounds),
        "measured": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    help_text = "mp, v2, legacy or module:Class"
    parser.add_argument("--reference", default=MP, help=help_text)
    parser.add_argument("--candidate", default=Backend.V2.value, help=help_text)
    parser.add_argument("--topology", default="tp2")
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a vLLM engine argument for both; repeatable",
    )
    parser.add_argument("--rounds", type=int, default=20, help="six or more give an interval")
    parser.add_argument(
        "--at-most", type=float, default=180, help="seconds after which no further round begins"
    )
    parser.add_argument("--calls", type=int, default=300, help="round trips in each round")
    parser.add_argument("--repeats", type=int, default=2, help="batches decoded in each round")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    # The default action would leave the engines behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="raycompat-benchmark-") as folder:
        try:
            result = run(options, Path(folder))
        except ArmDiedError as error:
            sys.exit(f"Error: {error}")
    print(
        json.dumps(result, indent=2)
        if options.json
        else table(result, options.reference, options.candidate)
    )
    sys.exit(any(one["verdict"] == "BROKEN" for one in result["metrics"].values()))


if __name__ == "__main__":
    main()
