"""V2 chooses a port on the driver and lets go of it before rank 0, maybe elsewhere, binds it."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import original
from vllm_ray_compat.schedule import Backend

#: Carries the address to the workers, among the driver's variables. No variable is called that.
_KEY = "=raycompat distributed_init_method"


class _Asking(Mixin):
    """The address is asked of rank 0, once it is there: vLLM chose one before."""

    @property
    def driver_env_vars(self) -> dict[str, str]:
        """What vLLM sends to each worker when all actors are there."""
        if _KEY not in self._raycompat_driver_env_vars:
            from vllm.v1.executor import ray_executor_v2

            # vLLM's, which another repair may have given a deadline.
            ray = original(ray_executor_v2, "ray")
            method = ray.get(self.ray_worker_handles[0].actor.raycompat_open_store.remote())
            self._raycompat_driver_env_vars[_KEY] = method
        variables: dict[str, str] = self._raycompat_driver_env_vars
        return variables

    @driver_env_vars.setter
    def driver_env_vars(self, value: dict[str, str]) -> None:
        self._raycompat_driver_env_vars = dict(value)


class _Holding(Mixin):
    """The worker of rank 0 binds the port, and keeps it."""

    def raycompat_open_store(self) -> str:
        """Bind the store; returns the init method."""
        from vllm_ray_compat.executors.tcp_store import open_store

        world_size = self._init_kwargs["vllm_config"].parallel_config.world_size
        self._raycompat_store, init_method = open_store(world_size)
        return init_method

    def initialize_worker(
        self,
        local_rank: int,
        env_vars: dict[str, str],
        driver_env_vars: dict[str, str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Use the address of the store instead of the one the actor was made with."""
        variables = dict(driver_env_vars or {})
        if method := variables.pop(_KEY, None):  # none: the driver repairs less than this node
            self._init_kwargs["distributed_init_method"] = method
        super().initialize_worker(local_rank, env_vars, variables, *args, **kwargs)


REPAIR = Repair(
    name="v2-store-port",
    defects=("V2-11",),
    backends=frozenset({Backend.V2}),
    since="0.20.0",
    fixed_in="0.29.0",
    reports=(
        "https://github.com/vllm-project/vllm/pull/50969",
        "https://github.com/vllm-project/vllm/pull/53666",
        "https://github.com/vllm-project/vllm/pull/45960",
    ),
    symptom=(
        "Engines that start at the same time, or on one host (0.25 to 0.28: both on port 100), "
        "fail with EADDRINUSE or talk to another engine's store."
    ),
    effect="Rank 0 binds the port of torch.distributed on its own node and never lets go of it.",
    executor=_Asking,
    worker=_Holding,
)
