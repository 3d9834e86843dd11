"""On ROCm and XPU, vLLM starts a Ray that knows only as many devices as one engine uses."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.executors.repairs.replacing import StandIn, original, replaced
from vllm_ray_compat.schedule import Backend


class _Counted(Mixin):
    """All of the node's devices are declared."""

    def _init_executor(self) -> None:
        from vllm.platforms import current_platform
        from vllm.v1.executor import ray_utils

        ray = original(ray_utils, "ray")

        def init(*args: Any, **kwargs: Any) -> Any:
            # Only there does vLLM name a number: when it starts Ray itself, on these platforms.
            if "num_gpus" in kwargs:
                kwargs["num_gpus"] = current_platform.device_count()
            return ray.init(*args, **kwargs)

        with replaced(ray_utils, ray=StandIn(ray, init=init)):
            super()._init_executor()


REPAIR = Repair(
    name="device-count",
    defects=(),
    backends=frozenset({Backend.V2, Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.29.0",
    reports=("https://github.com/vllm-project/vllm/pull/54249",),
    symptom=(
        "On ROCm and XPU, a second engine that joins the Ray which the first one started waits "
        "for devices for ever."
    ),
    effect="The Ray that vLLM starts on ROCm and XPU has all devices of the node.",
    executor=_Counted,
)
