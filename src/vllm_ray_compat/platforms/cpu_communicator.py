"""vLLM's CPU communicator, for groups whose ranks are on several nodes, too."""

from __future__ import annotations

from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.parallel_state import in_the_same_node_as


class RayCpuCommunicator(CpuCommunicator):  # type: ignore[misc]
    """Shared memory only where all ranks of a group are on one node; ``torch.distributed`` else.

    vLLM's own asks the ranks only whether they call the segment by the same name, and they do: the
    start on several nodes fails with ``open shm in SHMManager failed`` (0.19.1 to 0.33.0).
    """

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        # First: all ranks have to take part, whatever the others answer.
        together: bool = all(in_the_same_node_as(self.cpu_group, source_rank=0))
        return super()._all_group_ranks_share_shm_group_name() and together
