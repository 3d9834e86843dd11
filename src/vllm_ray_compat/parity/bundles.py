"""Which bundle each rank of an arm gets: ``--bundle-indices LIST``, or ``ARM:LIST`` for one arm.

A list becomes ``VLLM_RAY_BUNDLE_INDICES`` of the arm's process. The executor makes a placement
group with a bundle for each rank, so a list is an order of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.executors.placement import PlacementError, parse_bundle_indices
from vllm_ray_compat.parity.backends import MP
from vllm_ray_compat.parity.sides import Side
from vllm_ray_compat.parity.topology import Topology


def bundle_lists(
    texts: Sequence[str], sides: Iterable[Side], topologies: Sequence[Topology]
) -> dict[str, str]:
    """Return the list of each arm that gets one, by the arm's name.

    Args:
        texts: ``LIST`` for all arms on Ray, ``ARM:LIST`` for that one, which goes before.
        sides: the arms of the run.
        topologies: a list has to fit each.

    Raises:
        UsageError: no list of numbers, not each bundle once, no such arm, or one without bundles.
    """
    on_ray = {side.name: side.kind != MP for side in sides}
    found: dict[str, str] = {}
    # Those for all first, so that those for one go before them in any order.
    for text in sorted(texts, key=lambda text: ":" in text):
        name, colon, given = text.rpartition(":")
        arms = [name] if colon else [arm for arm in on_ray if on_ray[arm]]
        if colon and name not in on_ray:
            raise unknown("arm", name, on_ray)
        if not arms or not on_ray[arms[0]]:
            raise UsageError(
                f"--bundle-indices {text}: {name or 'mp'} has no placement group; only the arms "
                "on Ray have one."
            )
        listed = _checked(text, given, topologies)
        found |= dict.fromkeys(arms, listed)
    return found


def _checked(text: str, given: str, topologies: Sequence[Topology]) -> str:
    try:
        indices = parse_bundle_indices(given)
    except PlacementError as error:
        raise UsageError(f"--bundle-indices {text}: {error}") from None
    for topology in topologies:
        if sorted(indices) != list(range(topology.world_size)):
            raise UsageError(
                f"--bundle-indices {text}: {topology} has {topology.world_size} ranks, so give the "
                f"bundles 0 to {topology.world_size - 1} in any order, each once."
            )
    return ",".join(map(str, indices))
