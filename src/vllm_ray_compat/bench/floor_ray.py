"""What Ray takes, without vLLM: calls of plain actors, and a Compiled Graph over them."""

from __future__ import annotations

import os
from typing import Any

from vllm_ray_compat.bench.echo_actor import EchoActor
from vllm_ray_compat.bench.floor import Floor, check_echo
from vllm_ray_compat.errors import UnusableEnvironmentError

#: Ray copies an argument of up to 100 KiB into each call, and puts a larger one into the object
#: store for each call; a caller that puts it there once has done the best that can be done.
_INLINE_BYTES = 100 * 1024
_STOP_WITHIN_S = 10.0


class RayFloor(Floor):
    """Actors that take no resource, on the cluster of ``RAY_ADDRESS``; a namespace of their own."""

    distributions = ("ray",)

    def __init__(self, world_size: int) -> None:
        """Start *world_size* actors.

        Raises:
            UnusableEnvironmentError: ``RAY_ADDRESS`` is not set.
        """
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            raise UnusableEnvironmentError(
                "This floor needs a Ray cluster, and RAY_ADDRESS names none. Set it to the "
                "address of one."
            )
        import ray

        ray.init(address=address, namespace=f"raycompat-floor-{os.getpid()}", log_to_driver=False)
        self._ray = ray
        actor = ray.remote(EchoActor).options(num_cpus=0, num_gpus=0)
        self._actors: list[Any] = [actor.remote() for _ in range(world_size)]
        self.pids = ray.get([one.process.remote() for one in self._actors])

    def close(self) -> None:
        """Kill the actors and leave Ray, which waits for the cluster to know."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self._ray.shutdown()


class RayActorFloor(RayFloor):
    """A call of each actor."""

    title = "calls of Ray actors"

    def round_trip(self, payload: bytes) -> None:
        """Send *payload* to all actors, and take an answer from each; see :class:`Floor`."""
        message = payload if len(payload) <= _INLINE_BYTES else self._ray.put(payload)
        for answer in self._ray.get([actor.echo.remote(message) for actor in self._actors]):
            check_echo(answer, payload)


class CompiledGraphFloor(RayFloor):
    """One execution of a graph that Ray has compiled."""

    title = "a Ray Compiled Graph over actors"

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        from ray.dag import InputNode, MultiOutputNode

        with InputNode() as entry:
            graph = MultiOutputNode([actor.echo.bind(entry) for actor in self._actors])
        self._graph: Any = graph.experimental_compile()

    def round_trip(self, payload: bytes) -> None:
        """Send *payload* to all actors, and take an answer from each; see :class:`Floor`."""
        for answer in self._ray.get(self._graph.execute(payload)):
            check_echo(answer, payload)

    def close(self) -> None:
        """Take the graph down, so that it frees its channels, then end the actors."""
        if self._graph is not None:
            self._graph.teardown()
            self._graph = None
        super().close()
