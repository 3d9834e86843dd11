"""Which placement groups vLLM makes, so that those, and no others, can be given back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from vllm_ray_compat.executors.repairs.replacing import StandIn, original, replaced
from vllm_ray_compat.names import LOGGER_NAME

_logger = logging.getLogger(LOGGER_NAME)


@contextlib.contextmanager
def noted() -> Iterator[list[Any]]:
    """Yield the list to which each placement group is added that vLLM makes in the meantime."""
    from vllm.v1.executor import ray_utils

    ray = original(ray_utils, "ray")
    made: list[Any] = []

    def placement_group(*args: Any, **kwargs: Any) -> Any:
        made.append(ray.util.placement_group(*args, **kwargs))
        return made[-1]

    stand_in = StandIn(ray, util=StandIn(ray.util, placement_group=placement_group))
    with replaced(ray_utils, ray=stand_in):
        yield made


def give_back(made: Iterable[Any], parallel_config: Any) -> None:
    """Remove the groups *made*, and have *parallel_config* forget them. Never raises."""
    from vllm_ray_compat.executors.ray_cluster import Group

    for group in made:
        try:
            Group(group, True, parallel_config).remove()
        except Exception as error:  # Ray is going away, and takes the group with it
            _logger.debug("A placement group could not be removed: %s", error)
