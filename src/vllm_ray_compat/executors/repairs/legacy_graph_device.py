"""On GPUs the first step fails, because Ray cannot tell which device the graph runs on."""

from __future__ import annotations

from vllm_ray_compat.executors.graph_device import set_graph_device
from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _DeviceTold(Mixin):
    """Every worker tells Ray its device before the graph's first run."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self.collective_rpc(set_graph_device)


REPAIR = Repair(
    name="legacy-graph-device",
    defects=("L-1",),
    backends=frozenset({Backend.LEGACY}),
    since="0.24.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="The first step fails with 'CUDA_VISIBLE_DEVICES set incorrectly' unless that "
    "variable is set where Ray was started.",
    effect="Each worker tells Ray its device, so that Ray does not look for it.",
    executor=_DeviceTold,
)
