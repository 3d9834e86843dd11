"""vLLM refuses an encoder cache connector with several workers, but when they run already."""

from __future__ import annotations

from vllm_ray_compat.executors import legacy_limits
from vllm_ray_compat.executors.repairs.legacy_refusal import refusing
from vllm_ray_compat.executors.repairs.repair import Repair
from vllm_ray_compat.schedule import Backend

# Not before 0.28: the scheduler of no executor looked at what these connectors report.
REPAIR = Repair(
    name="legacy-ec-connector",
    defects=("L-18",),
    backends=frozenset({Backend.LEGACY}),
    since="0.28.0",
    fixed_in="0.33.0",
    reports=("https://github.com/vllm-project/vllm/pull/49585",),
    symptom="An EC connector with several workers fails after all of them have loaded the model, "
    "and leaves them and the placement group behind.",
    effect="The engine refuses to start with it before any worker exists.",
    refuses=True,
    executor=refusing(legacy_limits.ec_connector, "legacy-ec-connector"),
)
