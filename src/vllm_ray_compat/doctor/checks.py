"""What a check is, what it may need, and what the table of checks must hold."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_ray_compat.doctor.findings import Finding, Group

if TYPE_CHECKING:
    from vllm_ray_compat.doctor.context import Context

_NAME = re.compile(r"[a-z]+(-[a-z]+)*")


class Need(enum.Enum):
    """What a check cannot do without."""

    DECISION = "a vLLM, and settings that can be read"
    CLUSTER = "a Ray cluster"
    PROBES = "answers of every node of a Ray cluster"
    LOG = "a log"


@dataclass(frozen=True)
class Check:
    """One question.

    Attributes:
        name: as in ``--only``.
        group: what it looks at.
        asks: one sentence for help and documentation.
        run: answers it; called only when every need is met.
        needs: what it cannot do without.
    """

    name: str
    group: Group
    asks: str
    run: Callable[[Context], Iterable[Finding]]
    needs: frozenset[Need] = frozenset()


def validate(checks: Sequence[Check]) -> None:
    """Check the table, and report every contradiction at once.

    Raises:
        AssertionError: with one sentence for each.
    """
    faults: list[str] = []
    words = {group.value for group in Group}
    seen: set[str] = set()
    for check in checks:
        if check.name in seen:
            faults.append(f"{check.name} is there twice")
        seen.add(check.name)
        if not _NAME.fullmatch(check.name) or check.name in words:
            faults.append(f"{check.name!r} cannot be a name in --only")
        if not check.asks.endswith("?"):
            faults.append(f"{check.name} asks nothing: {check.asks!r}")
        if (check.group is Group.LOG) != (Need.LOG in check.needs):
            faults.append(f"{check.name}: group and needs say different things of a log")
        if (check.group is Group.CLUSTER) != bool(check.needs & {Need.CLUSTER, Need.PROBES}):
            faults.append(f"{check.name}: group and needs say different things of a cluster")
    groups = [check.group for check in checks]
    if groups != sorted(groups, key=list(Group).index):
        faults.append("the checks of a group do not stand together")
    if faults:
        raise AssertionError("; ".join(faults))
