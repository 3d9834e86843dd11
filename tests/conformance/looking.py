"""What an engine leaves, and what a call comes to: asked of Ray and of the machine.

Imported by the scripts that tests of executors run as processes of their own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.placement_group import placement_group_table

from vllm_ray_compat.shared_memory import mapped_segments


def without_semaphores(names: Iterable[str]) -> set[str]:
    """Return *names* in /dev/shm but for Compiled Graph's semaphores: Ray frees them at its end."""
    return {name for name in names if not name.rpartition("/")[2].startswith("sem.")}


def segments() -> set[str]:
    """What is in /dev/shm but for Compiled Graph's semaphores."""
    return without_semaphores(path.name for path in Path("/dev/shm").iterdir())


def held_by_others() -> set[str]:
    """Segments that processes other than this one use: not left behind, and maybe not ours."""
    pids = (pid for pid in psutil.pids() if pid != os.getpid())
    return {path.rpartition("/")[2] for pid in pids for path in mapped_segments(pid)}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = call()
    return round(time.monotonic() - began, 3), result


def raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:  # which one is what is asked
        return f"{type(error).__name__}: {error}"
    return ""


def answer(call: Callable[[], Any]) -> Any:
    """Return what *call* returns, or the text of what it raises."""
    found: list[Any] = []
    return raised(lambda: found.append(call())) or found[0]


def devices_held(expected: float = 0) -> float:
    """Devices that actors and placement groups hold; waits a moment for them to be *expected*."""
    held = 0.0
    for _ in range(50):
        held = ray.cluster_resources()["GPU"] - ray.available_resources().get("GPU", 0.0)
        if held == expected:
            break
        time.sleep(0.1)
    return float(held)


def is_alive(pid: int) -> bool:
    """Say whether *pid* still runs after a moment to go away."""
    for _ in range(30):
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                time.sleep(0.1)
                continue
        return False
    return True


def devices_free() -> float:
    """Devices that no actor and no placement group holds; waits a moment for Ray to notice."""
    return float(ray.cluster_resources()["GPU"]) - devices_held()


def groups_left() -> list[str]:
    """States of the placement groups that were not removed."""
    return [g["state"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
