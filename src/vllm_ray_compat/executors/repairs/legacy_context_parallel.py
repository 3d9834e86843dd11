"""Workers of prefill context parallelism are not in the graph, so they never run a step."""

from __future__ import annotations

from vllm_ray_compat.executors import legacy_limits
from vllm_ray_compat.executors.repairs.legacy_refusal import refusing
from vllm_ray_compat.executors.repairs.repair import Repair
from vllm_ray_compat.schedule import Backend

REPAIR = Repair(
    name="legacy-context-parallel",
    defects=("L-6",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="With prefill context parallelism only the first workers run steps; the others, and "
    "with them the first collective operation, wait for ever.",
    effect="The engine refuses to start with it.",
    refuses=True,
    executor=refusing(legacy_limits.context_parallel, "legacy-context-parallel"),
)
