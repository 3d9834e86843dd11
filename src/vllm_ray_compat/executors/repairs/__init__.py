"""Repairs of the executors that vLLM ships: one file a defect, and this table of them.

Importing the table imports nothing of vLLM or Ray.
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from vllm_ray_compat.executors.repairs import (
    bundle_indices,
    device_count,
    legacy_context_parallel,
    legacy_detach,
    legacy_draft_tokens,
    legacy_ec_connector,
    legacy_future,
    legacy_graph_device,
    legacy_kv_connector,
    legacy_model_runner,
    legacy_monitor,
    legacy_ranks,
    legacy_shutdown,
    node_ports,
    placement_group,
    v2_actor_names,
    v2_bundle_order,
    v2_oversized_group,
    v2_queue_port,
    v2_shutdown,
    v2_stale_answers,
    v2_start_up,
    v2_store_port,
    whole_tp_groups,
    worker_import_environment,
)
from vllm_ray_compat.executors.repairs.repair import (
    Repair,
    is_untested,
    select_repairs,
    validate,
)
from vllm_ray_compat.schedule import Backend

#: In the order of methods: the first one's are called first.
REPAIRS: tuple[Repair, ...] = (
    # Refusals come before anything starts.
    legacy_model_runner.REPAIR,
    legacy_kv_connector.REPAIR,
    legacy_context_parallel.REPAIR,
    legacy_ec_connector.REPAIR,
    legacy_monitor.REPAIR,
    legacy_shutdown.REPAIR,
    legacy_graph_device.REPAIR,
    legacy_detach.REPAIR,
    legacy_future.REPAIR,
    legacy_draft_tokens.REPAIR,
    legacy_ranks.REPAIR,
    v2_start_up.REPAIR,  # before the others, because it cleans up after what fails in them, too
    v2_shutdown.REPAIR,
    v2_stale_answers.REPAIR,
    v2_oversized_group.REPAIR,
    v2_bundle_order.REPAIR,
    v2_store_port.REPAIR,
    v2_queue_port.REPAIR,
    v2_actor_names.REPAIR,
    worker_import_environment.REPAIR,
    device_count.REPAIR,
    # After those that clean up after a start that fails.
    placement_group.REPAIR,
    bundle_indices.REPAIR,
    whole_tp_groups.REPAIR,
    node_ports.REPAIR,
)

validate(REPAIRS)

NAMES: tuple[str, ...] = tuple(repair.name for repair in REPAIRS)


BY_NAME: dict[str, Repair] = {repair.name: repair for repair in REPAIRS}


def are_known_for(version: str) -> bool:
    """Say whether vLLM *version* is a release the repairs were tested on, or a build of one."""
    try:
        return not is_untested(Version(version))
    except InvalidVersion:
        return False


def in_force(
    backend: Backend,
    version: str,
    wanted: frozenset[str] | None = None,
    unwanted: frozenset[str] = frozenset(),
) -> tuple[Repair, ...]:
    """Return the repairs of :data:`REPAIRS` in force; see :func:`~.repair.select_repairs`."""
    return select_repairs(REPAIRS, backend, version, wanted, unwanted)
