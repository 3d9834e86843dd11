"""What an arm uses of the CPU while nobody asks it anything."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

#: Readers of vLLM's message queue spin for a second after their last message. Then this much more.
SETTLE_S = 1.25


def cores(pids: Sequence[int], seconds: float) -> float:
    """Return the CPU time, user and system, that *pids* use per second, at rest.

    Their children are not counted: an executor's workers are named, and neither they nor its
    driver start others.

    Args:
        pids: live processes.
        seconds: how long to look, after a settling time; CPU time is counted in ticks of 10 ms.

    Raises:
        psutil.NoSuchProcess: one has ended.
    """
    processes = [psutil.Process(pid) for pid in pids]
    time.sleep(SETTLE_S)
    before, began = _used(processes), time.monotonic()
    time.sleep(seconds)
    return (_used(processes) - before) / (time.monotonic() - began)


def _used(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)
