"""How two arms differ in the environments of their workers (as ``redaction`` kept them)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity.capture import Worker


class EnvironmentDifference(BaseModel):
    """One variable that differs between the workers of two arms."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    reference: str
    candidate: str
    name: str
    ranks: list[int]
    reference_value: str | None = Field(description="At the first of the ranks; None: not set.")
    candidate_value: str | None = Field(description="At the first of the ranks; None: not set.")


def compare_environments(
    topology: str,
    names: tuple[str, str],
    reference: Sequence[Worker],
    candidate: Sequence[Worker],
) -> list[EnvironmentDifference]:
    """Return the variables that differ, rank by rank, among ranks whose environment both recorded.

    They are told, not judged: two backends set different variables, and that is no fault.
    """
    left = {worker.rank: worker.environment for worker in reference}
    right = {worker.rank: worker.environment for worker in candidate}
    ranks: dict[str, list[int]] = {}
    values: dict[str, tuple[str | None, str | None]] = {}
    for rank in sorted(left.keys() & right.keys()):
        mine, theirs = left[rank], right[rank]
        if mine is None or theirs is None:
            continue
        for name in sorted(mine.keys() | theirs.keys()):
            pair = mine.get(name), theirs.get(name)
            if pair[0] != pair[1]:
                ranks.setdefault(name, []).append(rank)
                values.setdefault(name, pair)
    return [
        EnvironmentDifference(
            topology=topology,
            reference=names[0],
            candidate=names[1],
            name=name,
            ranks=found,
            reference_value=values[name][0],
            candidate_value=values[name][1],
        )
        for name, found in sorted(ranks.items())
    ]
