"""How a benchmark's driver speaks with its arms: JSON, a line each way.

The driver starts ``python -m vllm_ray_compat.bench.<module> SPEC_JSON``. The arm starts what it
measures, warms it up, and writes ``{"ready": …}`` (:class:`Ready`) on its standard output. Then
each line on its standard input, ``{"measure": name, …parameters}``, is answered by
``{"measured": {metric: value}}``. It ends, engine and all, when its input does: its driver is done,
or gone. What vLLM and Ray print goes to the log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.bench.figure import Figure


class ArmSpec(BaseModel):
    """What an arm is told."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="What it is called in the result: mp, v2, zmq-ipc.")
    backend: str = Field(description="mp, v2, legacy, module:Class; of a floor, its name.")
    topology: str = Field(description="tpN, ppN or tpNppN; of a control plane and floors, tpN.")
    model: str = Field(default="", description="The folder of the model; floors have none.")
    engine_args: dict[str, Any] = {}


class Ready(BaseModel):
    """What an arm says of itself when it can be measured, read from what runs."""

    model_config = ConfigDict(extra="forbid")

    executor: str = Field(description="module:Class of the live executor; of a floor, what it is.")
    repairs: list[str] = []
    versions: dict[str, str] = Field(description="python, and vllm, ray, torch, pyzmq as used.")
    pids: list[int] = Field(description="The driver's and the workers', to read their CPU time.")
    start_s: dict[str, Figure] = Field(
        description="Seconds of the start by phase, in order; they add up to the whole."
    )


class Measured(Protocol):
    """The arm's side: one live thing that can be measured, in the arm's process."""

    def ready(self) -> Ready:
        """Warm up, and say what runs."""

    def measure(self, measure: str, **how: Any) -> dict[str, float]:
        """Take one measurement by name."""

    def close(self) -> None:
        """End everything that was started."""


def serve(make: Callable[[ArmSpec], Measured]) -> None:
    """Run an arm: the ``main`` of every arm module."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    # Leave at once when the driver asks: it cleans up after this process in any case.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    arm = make(ArmSpec.model_validate_json(sys.argv[1]))
    try:
        print(json.dumps({"ready": arm.ready().model_dump()}), file=answers, flush=True)
        for line in sys.stdin:
            measured = arm.measure(**json.loads(line))
            print(json.dumps({"measured": measured}), file=answers, flush=True)
    finally:
        arm.close()
