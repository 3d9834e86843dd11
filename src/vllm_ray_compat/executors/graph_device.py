"""The device of a Compiled Graph's tensors, told to Ray in each worker."""

from __future__ import annotations

from typing import Any


def set_graph_device(wrapper: Any) -> None:
    """Tell Ray which device the tensors of this process's graph are on.

    Ray would look it up in CUDA_VISIBLE_DEVICES, which vLLM ≥ 0.24 does not set in workers, and
    fail at the first step (defect L-1). No other device needs it.

    Args:
        wrapper: vLLM's ``WorkerWrapperBase``, with its device initialised.
    """
    device = getattr(wrapper.worker, "device", None)
    if device is not None and device.type == "cuda":
        from ray.experimental.channel.common import ChannelContext

        ChannelContext.get_current().set_torch_device(device)
