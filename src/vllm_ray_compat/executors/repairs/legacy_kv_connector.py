"""With a KV connector and several stages, transfers are never seen to end.

A refusal, because the graph returns the outputs of the last stage only: to bring back what the
other stages report, each would have to be an output of another graph. A connector that expects
fewer reports (``get_finished_count()``) does not make it right: it says how many workers report,
and takes for granted that it hears the ones that do.
"""

from __future__ import annotations

from vllm_ray_compat.executors import legacy_limits
from vllm_ray_compat.executors.repairs.legacy_refusal import refusing
from vllm_ray_compat.executors.repairs.repair import Repair
from vllm_ray_compat.schedule import Backend

REPAIR = Repair(
    name="legacy-kv-connector",
    defects=("L-4",),
    backends=frozenset({Backend.LEGACY}),
    since="0.15.0",
    fixed_in="0.33.0",
    reports=(),
    symptom="With a KV connector and several pipeline stages, asynchronous transfers never count "
    "as finished: blocks are not freed, and requests that wait for one do not run.",
    effect="The engine refuses to start with both.",
    refuses=True,
    executor=refusing(legacy_limits.kv_connector, "legacy-kv-connector"),
)
