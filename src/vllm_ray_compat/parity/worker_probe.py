"""Mixed into vLLM's worker class (``worker_extension_cls``): lets a live worker describe itself."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from vllm_ray_compat.names import FLAG_NAME, PREFIX


class WorkerProbe:
    """Adds one method to every worker, reachable through ``collective_rpc`` by name."""

    rank: int
    local_rank: int

    def raycompat_describe(self) -> dict[str, Any]:
        """Return this rank's place: process, node, device and the class of its Ray actor."""
        from vllm_ray_compat.parity.redaction import redact

        ray = sys.modules.get("ray")
        context = None
        if ray is not None and ray.is_initialized():
            context = ray.get_runtime_context()
        return {
            "rank": int(self.rank),
            "local_rank": int(self.local_rank),
            "pid": os.getpid(),
            "node_ip": ray.util.get_node_ip_address() if ray is not None and context else "local",
            "node_id": context.get_node_id() if context else None,
            "worker_class": _path_of(type(self)),
            "actor_class": _actor_class() if context else None,
            "devices": (
                {k: [str(i) for i in v] for k, v in context.get_accelerator_ids().items() if v}
                if context
                else {}
            ),
            "bundle": _bundle(_resources()) if context else None,
            "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "environment": redact(os.environ),
            "settings": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith(PREFIX) or name == FLAG_NAME
            },
        }

    def raycompat_scale_weights(self, factor: float) -> int:
        """Multiply every weight by *factor*, as a trainer would push new ones.

        Returns:
            How many parameters changed.
        """
        import torch

        changed = 0
        worker: Any = self
        with torch.no_grad():
            for parameter in worker.get_model().parameters():
                if parameter.is_floating_point():
                    parameter.mul_(factor)
                    changed += 1
        return changed


def _path_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _resources() -> list[str]:
    """Return the names of what Ray has given this worker; the public call leaves the bundle out."""
    from ray._private.worker import global_worker

    return list(global_worker.core_worker.resource_ids())


def _bundle(resources: Iterable[str]) -> int | None:
    """Return the index of the bundle this worker runs in, by what Ray calls its resources there.

    In a placement group ``GPU`` is ``GPU_group_<index>_<group>``, and ``GPU_group_<group>``.
    """
    found = (re.fullmatch(r".+_group_(\d+)_[0-9a-f]{8,}", name) for name in resources)
    return next((int(match.group(1)) for match in found if match), None)


def _actor_class() -> str | None:
    """Return the class of the actor this process hosts, or None outside an actor.

    Ray has no public way to ask; the table of live actor instances is the same in Ray 2.48–2.60.
    """
    from ray._private.worker import global_worker

    for instance in getattr(global_worker, "actors", {}).values():
        return _path_of(type(instance))
    return None
