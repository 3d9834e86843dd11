"""The machine a benchmark ran on, as far as it decides its figures."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, Field


class Machine(BaseModel):
    """Hardware and kernel; no names or addresses."""

    model_config = ConfigDict(extra="forbid")

    processor: str
    cores: int = Field(description="That this process may use.")
    memory_gib: float
    gpus: list[str] = Field(description="Names; empty without nvidia-smi.")
    kernel: str
    autogroup: bool = Field(
        description="Linux shares the cores between sessions (kernel.sched_autogroup_enabled): the "
        "workers of mp are in their driver's, those of Ray in another one."
    )
    load_before: float = Field(description="Of the last minute, when the run began; 0 is quiet.")


def this_machine() -> Machine:
    """Look at this machine."""
    return Machine(
        processor=_processor(),
        cores=_cores(),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        gpus=_gpus(),
        kernel=f"{platform.system()} {platform.release()}",
        autogroup=_autogroup(),
        load_before=round(os.getloadavg()[0], 2),
    )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        done = subprocess.run(
            [command, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _autogroup() -> bool:
    with contextlib.suppress(OSError):
        text = Path("/proc/sys/kernel/sched_autogroup_enabled").read_text(encoding="utf-8")
        return text.strip() == "1"
    return False
