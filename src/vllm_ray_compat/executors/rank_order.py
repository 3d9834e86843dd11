"""Which order of ranks an executor makes of a placement group. Pure: ``status`` says it.

The two backends differ in one case, by vLLM's design: with ``VLLM_RAY_BUNDLE_INDICES`` V2 keeps the
order given, and legacy sorts the chosen bundles again. A list in which the bundles of the driver's
node come first, then those of each further node together, nodes with fewer ranks first, means the
same to both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_ray_compat.executors.placement import (
    PlacementError,
    RankPlacement,
    in_order,
    named_twice,
    parse_bundle_indices,
)
from vllm_ray_compat.schedule import Backend

#: vLLM's variable: the bundles of the ranks.
INDICES_NAME = "VLLM_RAY_BUNDLE_INDICES"

#: The repair that gives vLLM's own executors the order :data:`_BY_NODE`.
WHOLE_GROUPS = "whole-tp-groups"


@dataclass(frozen=True)
class RankOrder:
    """A rule by which ranks get bundles: a name for programs and a text for people."""

    name: str
    text: str


_AS_LISTED = RankOrder(
    "as_listed",
    f"rank 0 runs in the first bundle that {INDICES_NAME} names, rank 1 in the second, and so on: "
    "the order given is the rank order",
)
_LISTED_SORTED = RankOrder(
    "listed_then_sorted",
    f"{INDICES_NAME} chooses the bundles; ranks are then sorted: driver's node first, then nodes "
    "with fewer ranks, then by address. Bundles of one node keep the order given",
)
_BY_NODE = RankOrder(
    "by_node",
    "driver's node first, then node by node; a tensor-parallel group stays on one node where that "
    "can be done",
)
_SORTED_BY_NODE = RankOrder(
    "sorted_by_node",
    "driver's node first, then by node id, whatever tensor-parallel groups that splits",
)
_FIRST_SORTED = RankOrder(
    "first_then_sorted",
    "the group's first bundles with a device, sorted: driver's node first, then nodes with fewer "
    "ranks, then by address, whatever tensor-parallel groups that splits",
)


def rank_order(backend: Backend, *, listed: bool, whole_groups: bool = True) -> RankOrder:
    """Return the rule of *backend*.

    Args:
        backend: whose.
        listed: whether ``VLLM_RAY_BUNDLE_INDICES`` is set.
        whole_groups: whether it is an executor of this package, or vLLM's with the repair
            :data:`WHOLE_GROUPS`; vLLM's own go by node alone.
    """
    is_v2 = backend is Backend.V2
    if listed:
        return _AS_LISTED if is_v2 else _LISTED_SORTED
    if whole_groups:
        return _BY_NODE
    return _SORTED_BY_NODE if is_v2 else _FIRST_SORTED


@dataclass(frozen=True)
class ListedBundles:
    """What ``VLLM_RAY_BUNDLE_INDICES`` holds, as far as it can be judged without a cluster."""

    raw: str
    indices: tuple[int, ...] | None = None
    error: str | None = None


def read_bundle_indices(environ: Mapping[str, str] | None = None) -> ListedBundles | None:
    """Read ``VLLM_RAY_BUNDLE_INDICES``; None when it is unset or empty, as vLLM takes it.

    Whether the bundles exist and hold a device is known only when the placement group is.
    """
    raw = (os.environ if environ is None else environ).get(INDICES_NAME, "")
    if not raw:
        return None
    try:
        indices = tuple(parse_bundle_indices(raw))
    except PlacementError as error:
        return ListedBundles(raw, error=str(error))
    if twice := ", ".join(map(str, named_twice(indices))):
        return ListedBundles(
            raw,
            indices,
            f"{INDICES_NAME}={raw!r} names bundle {twice} more than once; each rank needs its own.",
        )
    return ListedBundles(raw, indices)


def describe(
    backend: Backend, *, whole_groups: bool = True, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the entry ``placement`` of ``status --json``.

    ``bundle_indices`` is None when the variable is unset; ``other_backend`` is the rule of the
    other executor where it is another one.
    """
    listed = read_bundle_indices(environ)
    rule = rank_order(backend, listed=listed is not None, whole_groups=whole_groups)
    (other,) = set(Backend) - {backend}
    theirs = rank_order(other, listed=listed is not None, whole_groups=whole_groups)
    return {
        "rank_order": rule.name,
        "rule": rule.text,
        "other_backend": (
            {"backend": other.value, "rank_order": theirs.name, "rule": theirs.text}
            if theirs != rule
            else None
        ),
        "bundle_indices": (
            None
            if listed is None
            else {
                "raw": listed.raw,
                "value": None if listed.indices is None else list(listed.indices),
                "error": listed.error,
            }
        ),
    }


def sorted_again(
    placed: Sequence[RankPlacement], driver_node: str, addresses: Mapping[str, str]
) -> list[RankPlacement]:
    """Return *placed* in the order legacy makes of it: see ``listed_then_sorted`` above.

    Args:
        placed: the chosen bundles.
        driver_node: where the driver runs.
        addresses: node id -> address.
    """
    ranks_on = Counter(p.node_id for p in placed)
    ordered = sorted(
        placed,
        key=lambda p: (
            p.node_id != driver_node,
            ranks_on[p.node_id],
            addresses.get(p.node_id, ""),
            p.node_id,
        ),
    )
    return in_order((p.bundle_index, p.node_id) for p in ordered)
