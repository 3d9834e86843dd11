"""One arm: a process that starts one engine, runs a suite through it and writes a capture.

Run as ``python -m vllm_ray_compat.parity.arm SPEC.json`` by the runner, which sets the
environment first. What is written says what ran, read from the live engine, never what was asked.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.metadata
import os
import platform
import re
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.answers import embedded, first_fault, generated, unmet
from vllm_ray_compat.parity.asking import operate, prepare, prompt_of
from vllm_ray_compat.parity.backends import MP, MP_EXECUTOR, is_class, short_name
from vllm_ray_compat.parity.drive import drive
from vllm_ray_compat.parity.lora import lora_requests
from vllm_ray_compat.parity.topology import parse_topology
from vllm_ray_compat.parity.trace import ENDING, Tracer
from vllm_ray_compat.parity.workloads import DEFAULT_PROFILE, Suite, Workload, parse_suite
from vllm_ray_compat.schedule import COMPAT_EXECUTORS, REPAIRED_EXECUTORS, VLLM_EXECUTORS, Backend

#: Class of the Ray actor that hosts a worker -> executor that created it.
_EXECUTOR_OF_ACTOR = {
    "vllm.v1.executor.ray_executor_v2:RayWorkerProc": VLLM_EXECUTORS[Backend.V2],
    "vllm.v1.executor.ray_utils:RayWorkerWrapper": VLLM_EXECUTORS[Backend.LEGACY],
    "vllm_ray_compat.executors.ray_worker:RayWorkerProc": COMPAT_EXECUTORS[Backend.V2],
    "vllm_ray_compat.executors.legacy_worker:LegacyWorker": COMPAT_EXECUTORS[Backend.LEGACY],
    "vllm_ray_compat.executors.repaired:RayWorkerProc": VLLM_EXECUTORS[Backend.V2],
    "vllm_ray_compat.executors.repaired:RayWorkerWrapper": VLLM_EXECUTORS[Backend.LEGACY],
}

_BASE_OF = {repaired: VLLM_EXECUTORS[backend] for backend, repaired in REPAIRED_EXECUTORS.items()}


class ArmSpec(BaseModel):
    """Everything an arm is told; written by the runner, read by the arm."""

    model_config = ConfigDict(extra="forbid")

    role: str
    backend: str
    topology: str
    model: str
    suite: Path
    capture: Path
    expected_executor: str
    engine_core: Literal["inproc", "process"] = "inproc"
    engine_args: dict[str, Any] = {}
    profile: str = DEFAULT_PROFILE
    not_run: list[cap.NotRun] = []
    side: str = ""
    python: str | None = None
    vllm: str = ""
    trace: bool = False

    @property
    def name(self) -> str:
        """What is compared, for displays: ``legacy``, ``legacy@0.19.1``, or a class's name."""
        return self.side or short_name(self.backend)

    @property
    def label(self) -> str:
        """How the arm is called in displays and file names: ``tp2-reference-legacy``."""
        name = f"{self.topology}-{self.role}-{self.name}"
        return name if self.profile == DEFAULT_PROFILE else f"{name}-{self.profile}"


class ArmFailedError(Exception):
    """Ends the arm with a failure record; the traceback goes to the arm's log."""

    def __init__(
        self,
        reason: Literal["environment", "wrong-executor", "engine-start", "workload", "shutdown"],
        message: str,
    ) -> None:
        super().__init__(message)
        self.reason: Literal[
            "environment", "wrong-executor", "engine-start", "workload", "shutdown"
        ] = reason


def main(argv: list[str]) -> int:
    """Run the arm named by the spec file ``argv[0]``; returns the exit code."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the runner asks before it kills
    spec = ArmSpec.model_validate_json(Path(argv[0]).read_text(encoding="utf-8"))
    with cap.CaptureWriter(spec.capture) as out:
        suite = parse_suite(spec.suite.read_text(encoding="utf-8"), str(spec.suite))
        out.write(
            cap.Header(
                role=spec.role,
                backend=spec.backend,
                topology=spec.topology,
                profile=spec.profile,
                suite=suite.name,
                model=spec.model,
                engine_core=spec.engine_core,
                started_at=time.time(),
                not_run=spec.not_run,
            )
        )
        try:
            _run(spec, suite, out)
        except ArmFailedError as error:
            traceback.print_exc()
            out.write(cap.Failure(reason=error.reason, message=str(error)))
            return 1
    return 0


def _run(spec: ArmSpec, suite: Suite, out: cap.CaptureWriter) -> None:
    out.phase("import")
    try:
        import vllm
    except ImportError as error:
        raise ArmFailedError("environment", f"vLLM cannot be imported: {error}") from error

    profile = suite.profile(spec.profile)
    llms: list[Any] = []
    for number in range(1, profile.engines + 1):
        out.phase("engine", f"{number} of {profile.engines}" if profile.engines > 1 else "")
        try:
            llms.append(vllm.LLM(**engine_arguments(spec, suite)))
        except Exception as error:  # whatever vLLM raises is the arm's failure, and is reported
            raise ArmFailedError("engine-start", _root_cause(error)) from error
        engine = describe_engine(llms[-1], spec.engine_core, start_s=out.elapsed())
        if number == 1:
            out.write(engine)
        expected = as_read(spec.expected_executor, engine.executor_read_from)
        if engine.executor != expected:
            raise ArmFailedError(
                "wrong-executor",
                f"the {spec.backend} arm was to run {expected}, but the live engine "
                f"runs {engine.executor}",
            )

    try:
        adapters = lora_requests(profile.lora, Path(spec.model))
    except (OSError, KeyError) as error:
        raise ArmFailedError("workload", f"an adapter cannot be made: {error!r}") from error
    took: dict[str, float] = {}
    tracer = _tracer(llms[0], spec) if spec.trace else None
    left_out = {one.workload for one in spec.not_run}
    for workload in suite.of_profile(spec.profile):
        if workload.name in left_out:
            continue
        if (what := unmet(workload, engine)) is not None:
            raise ArmFailedError("workload", what)
        for number, llm in enumerate(llms, 1):
            name = cap.of_engine(workload.name, number)
            out.phase("workload", name)
            if tracer is not None:
                tracer.workload = name
            began = time.monotonic()
            results = run_workload(llm, workload, adapters, name)
            for result in results:
                out.write(result)
            took[name] = round(time.monotonic() - began, 3)
            if (what := first_fault(workload, results)) is not None:
                raise ArmFailedError("workload", what)

    if tracer is not None:
        tracer.close()
    out.phase("shutdown")
    began = time.monotonic()
    try:
        for llm in llms:
            llm.llm_engine.engine_core.shutdown()
    except Exception as error:  # reported: an executor that cannot shut down is a finding
        raise ArmFailedError("shutdown", _root_cause(error)) from error
    out.write(
        cap.End(
            workloads_s=took,
            shutdown_s=round(time.monotonic() - began, 3),
            total_s=out.elapsed(),
        )
    )


def _tracer(llm: Any, spec: ArmSpec) -> Tracer:
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    return Tracer(scheduler, spec.capture.with_name(spec.label + ENDING))


def engine_arguments(spec: ArmSpec, suite: Suite) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.LLM``: the pins, then the suite's, then the user's.

    Both arms get the same ones but for the backend: no async scheduling (legacy has none), eager
    execution and one seed.
    """
    topology = parse_topology(spec.topology)
    pins: dict[str, Any] = {
        "async_scheduling": False,
        "enforce_eager": True,
        "seed": 0,
        "disable_log_stats": True,
    }
    return {
        **pins,
        **suite.profile(spec.profile).engine,
        **spec.engine_args,
        "model": spec.model,
        "tensor_parallel_size": topology.tp,
        "pipeline_parallel_size": topology.pp,
        "distributed_executor_backend": executor_backend(spec.backend),
        "worker_extension_cls": "vllm_ray_compat.parity.worker_probe.WorkerProbe",
    }


def executor_backend(backend: str) -> Any:
    """Return what vLLM takes for a backend: ``mp``, ``ray``, or a class named ``module:Class``."""
    if is_class(backend):
        module, _, name = backend.partition(":")
        return getattr(importlib.import_module(module), name)
    return MP if backend == MP else "ray"


def describe_engine(llm: Any, engine_core: str, start_s: float) -> cap.Engine:
    """Read from the live engine which executor runs, and from each worker where it is."""
    import torch
    import vllm

    workers = sorted(
        (cap.Worker(**found) for found in llm.collective_rpc("raycompat_describe")),
        key=lambda worker: worker.rank,
    )
    kind: type | None = None
    if engine_core == "inproc":
        kind = type(llm.llm_engine.engine_core.engine_core.model_executor)
        executor = f"{kind.__module__}:{kind.__qualname__}"
    else:
        executor = _executor_from_workers(workers)
    config = llm.llm_engine.vllm_config
    return cap.Engine(
        executor=executor,
        executor_read_from="engine" if engine_core == "inproc" else "workers",
        provider=as_read(executor, "workers").partition(".")[0],
        repairs=None if kind is None else list(getattr(kind, "raycompat_repairs", ())),
        vllm=vllm.__version__,
        ray=_version("ray"),
        torch=torch.__version__,
        python=platform.python_version(),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        async_scheduling=bool(config.scheduler_config.async_scheduling),
        enforce_eager=bool(config.model_config.enforce_eager),
        v2_model_runner=getattr(config, "use_v2_model_runner", None),
        workers=workers,
        start_s=start_s,
    )


def as_read(executor: str, read_from: str) -> str:
    """Return *executor* as it can be told: workers don't show whether theirs was repaired."""
    if read_from == "workers" and executor in _BASE_OF:
        return _BASE_OF[executor]
    return executor


def _executor_from_workers(workers: list[cap.Worker]) -> str:
    """Tell the executor by who hosts its workers, where the engine core is another process."""
    hosts = {worker.actor_class for worker in workers}
    if hosts == {None}:
        return MP_EXECUTOR
    if len(hosts) == 1 and (host := hosts.pop()) in _EXECUTOR_OF_ACTOR:
        return _EXECUTOR_OF_ACTOR[str(host)]
    return f"unknown, workers hosted by {sorted(map(str, hosts))}"


def run_workload(
    llm: Any, workload: Workload, adapters: Mapping[str, Any], name: str
) -> list[cap.Result]:
    """Run a workload; return its results in the order of its requests.

    Raises:
        ArmFailedError: the engine raised, or a request did not end as it must.
    """
    try:
        for operation in workload.before:
            operate(llm, operation)
        if workload.kind == "embed":
            results = _embed(llm, workload, name)
        else:
            driven = drive(llm.llm_engine, prepare(llm, workload, adapters))
            results = [generated(name, one) for one in driven]
    except Exception as error:  # whatever the engine raises is the arm's failure
        raise ArmFailedError("workload", f"workload {name}: {_root_cause(error)}") from error
    return results


def _embed(llm: Any, workload: Workload, name: str) -> list[cap.Result]:
    outputs = llm.embed([prompt_of(llm, r) for r in workload.requests], use_tqdm=False)
    return [
        embedded(name, request.id, output)
        for request, output in zip(workload.requests, outputs, strict=True)
    ]


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def _root_cause(error: BaseException) -> str:
    """Return the text of the first error of a chain, and of the last where it differs.

    The log has all of it. Here an error whose text is a whole traceback (Ray sends those) is
    told by its last line, which names the error.
    """
    first = error
    while first.__cause__ is not None or (
        first.__context__ is not None and not first.__suppress_context__
    ):
        first = first.__cause__ or first.__context__ or first
    text = _told(first)
    return text if first is error else f"{text} (seen as {_told(error)})"


def _told(error: BaseException) -> str:
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    name = type(error).__name__
    is_traceback = len(lines) > 3 and any(line.startswith('File "') for line in lines)
    text = f"{name}: {last}" if is_traceback else f"{name}: {' '.join(lines)}"
    return text[:1000]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    # Leave at once when the runner asks: it cleans up after this process in any case.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    sys.exit(main(sys.argv[1:]))
