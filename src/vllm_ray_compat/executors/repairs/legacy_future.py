"""``collective_rpc(non_block=True)`` returns a future whose result is always an error."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.executors.repairs.repair import Mixin, Repair
from vllm_ray_compat.schedule import Backend


class _Futures(Mixin):
    """The future of a call is not taken for that of a step."""

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        vllms: Any = super()
        result = vllms.collective_rpc(method, timeout, args, kwargs, non_block)
        if not non_block:
            return result
        from vllm_ray_compat.executors.legacy_graph import RayFuture

        return RayFuture(result.ref_or_refs, lambda results: results)


# vLLM has used this future for steps and calls alike since 0.20, when it began to look for the
# arrays of a step in its result.
REPAIR = Repair(
    name="legacy-future",
    defects=(),
    backends=frozenset({Backend.LEGACY}),
    since="0.20.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="collective_rpc(non_block=True).result() raises AttributeError: 'list' object has no "
    "attribute 'logprobs'.",
    effect="It returns the list of the workers' results.",
    executor=_Futures,
)
