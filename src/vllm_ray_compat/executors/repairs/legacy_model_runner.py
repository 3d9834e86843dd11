"""Model Runner V2 gives wrong tokens or hangs with several stages, and cannot pool."""

from __future__ import annotations

from vllm_ray_compat.executors import legacy_limits
from vllm_ray_compat.executors.repairs.legacy_refusal import refusing
from vllm_ray_compat.executors.repairs.repair import Repair
from vllm_ray_compat.schedule import Backend

# Not before 0.17: there the runner knew neither stages nor pooling, with any executor.
REPAIR = Repair(
    name="legacy-model-runner",
    defects=("L-2",),
    backends=frozenset({Backend.LEGACY}),
    since="0.17.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="Model Runner V2 (the default in newer releases) with several pipeline stages returns "
    "wrong tokens and then hangs; a pooling model fails.",
    effect="The engine refuses to start with them, and says which variable puts it right.",
    refuses=True,
    executor=refusing(legacy_limits.model_runner, "legacy-model-runner"),
)
