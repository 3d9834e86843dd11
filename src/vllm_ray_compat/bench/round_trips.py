"""How a round trip is timed, the same in every arm."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from vllm_ray_compat.bench.latencies import figures
from vllm_ray_compat.errors import unknown

#: Calls that are not counted. They wake what has gone to sleep: readers of vLLM's message queue do
#: after a second without a message.
WARM_UP = 50


class RoundTripArm(abc.ABC):
    """An arm of which round trips are measured, and nothing else."""

    @abc.abstractmethod
    def round_trip(self, path: str, payload: str, calls: int) -> dict[str, float]:
        """Time *calls* round trips; see :func:`~.latencies.figures`.

        Raises:
            UsageError: no such path or payload.
        """

    def measure(self, measure: str, **how: Any) -> dict[str, float]:
        """Take one measurement by name, which is ``round_trip``.

        Raises:
            UsageError: there is none of this name.
        """
        if measure != "round_trip":
            raise unknown("measure", measure, ("round_trip",))
        return self.round_trip(**how)


def measure(call: Callable[[], object], calls: int, warm_up: int = WARM_UP) -> dict[str, float]:
    """Make *calls* calls, one after the other; see :func:`~.latencies.figures`.

    A call begins where the one before it ends, so that nothing lies between two.

    Args:
        call: one round trip; raises when its answer is wrong.
        calls: how many are counted.
        warm_up: how many are made before them.
    """
    for _ in range(warm_up):
        call()
    clock = time.perf_counter
    at = [0.0] * (calls + 1)
    at[0] = clock()
    for number in range(1, calls + 1):
        call()
        at[number] = clock()
    return figures([end - begin for begin, end in pairwise(at)])
