"""Nodes that cannot reach each other on the ports of the workers: the start waits in silence.

Ray's own ports are enough for actors to start. What they start needs others, and a firewall between
the nodes, or a wrong VLLM_HOST_IP, shows only as an engine that never comes up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm_ray_compat.executors.repairs import placing, workers
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, calls_through, original, replaced
from vllm_ray_compat.schedule import Backend


class _Checked(Mixin):
    """The check comes when all actors have answered and before workers meet."""

    def _init_executor(self) -> None:
        if placing.backend_of(self) is not Backend.V2:
            with calls_through(self, self._raycompat_before_workers):
                super()._init_executor()
            return
        module = placing.module_of(Backend.V2)
        ray = original(module, "ray")  # which another repair may have given a deadline
        checked = False

        def get(refs: Any) -> Any:
            nonlocal checked
            found = ray.get(refs)
            if not checked:  # it was the first question to all actors
                checked = True
                handles = self.ray_worker_handles
                self._raycompat_check_nodes(
                    [h.node_id for h in handles], [h.actor for h in handles]
                )
            return found

        with replaced(module, ray=StandIn(ray, get=get)):
            super()._init_executor()

    def _raycompat_before_workers(
        self, call: Callable[..., Any], method: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Check before ``init_worker``, which each start of legacy calls once."""
        if method == "init_worker":
            from vllm_ray_compat.executors import startup

            where = workers.asking_where()
            places = startup.collect(
                {rank: w.__ray_call__.remote(where) for rank, w in enumerate(self.workers)},
                "Asking the worker for its node",
                startup.Deadline(startup.start_timeout_s()),
            )
            self._raycompat_check_nodes([node for node, *_ in places.values()], self.workers)
        return call(method, *args, **kwargs)

    def _raycompat_check_nodes(self, nodes_of_ranks: Sequence[str], actors: Sequence[Any]) -> None:
        from vllm_ray_compat.executors import reachability, startup

        try:
            reachability.check(
                nodes_of_ranks,
                actors,
                tensor_parallel_size=self.parallel_config.tensor_parallel_size,
                store_by_vllms_address=placing.backend_of(self) is Backend.LEGACY,
                deadline=startup.Deadline(startup.start_timeout_s()),
            )
        except reachability.UnreachableNodeError as error:
            raise reachability.UnreachableNodeError(
                f"{error} To start without this check, set RAYCOMPAT_REPAIRS=all,-node-ports."
            ) from None


REPAIR = Repair(
    name="node-ports",
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.15.0",
    fixed_in=None,
    reports=(),
    symptom=(
        "With only Ray's ports open between nodes, or a wrong VLLM_HOST_IP, a start on several "
        "nodes hangs without a word."
    ),
    effect=(
        "Before workers meet, each node connects to the others; a start fails within seconds with "
        "the addresses that were not reached."
    ),
    executor=_Checked,
)
