"""The test items of a parity session: one for each topology, workload and candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from vllm_ray_compat.parity.pytest_plugin import ROOT

if TYPE_CHECKING:
    from _pytest._code.code import ExceptionInfo, TerminalRepr

    from vllm_ray_compat.parity.pytest_session import ParitySession


class ParityError(Exception):
    """An item fails; the text is the whole of what pytest shows, without a traceback."""


class ParityGroup(pytest.Collector):
    """A name in front of others: ``ray-parity``, and below it a topology."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        self.children: list[Any] = []

    def collect(self) -> Sequence[Any]:
        """Return what is below."""
        return self.children


class ParityItem(pytest.Item):
    """One workload of one candidate on one topology."""

    def __init__(
        self, *, session_of: ParitySession, topology: str, workload: str, candidate: str, **kw: Any
    ) -> None:
        super().__init__(**kw)
        self._of = session_of
        self.topology = topology
        self.workload = workload
        self.candidate = candidate
        self.add_marker(pytest.mark.ray_parity)

    def runtest(self) -> None:
        """Judge the workload, once the arms of the topology have run.

        Raises:
            ParityError: it does not hold, or the arms did not run to their end.
        """
        # A rerun says the same again, not twice.
        self.user_properties[:] = []
        self._of.judge(self)

    def repr_failure(
        self, excinfo: ExceptionInfo[BaseException], style: Any = None
    ) -> str | TerminalRepr:
        """Return what is shown of a failure."""
        if isinstance(excinfo.value, ParityError):
            shown = excinfo.getrepr(style="value")
            if shown.reprcrash is not None:
                # For pytest's short summary, which a CI gets uncut, and for JUnit's message: the
                # rest stands in the section of the failure, once.
                shown.reprcrash.message = str(excinfo.value).partition("\n")[0]
            return shown
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the item is; it has no line."""
        return self.path, None, self.nodeid


def node_id(topology: str, workload: str, short: str) -> str:
    """Return the node id of an item: ``ray-parity::tp2::greedy[v2]``."""
    return f"{ROOT}::{topology}::{_name(workload, short)}"


def _name(workload: str, short: str) -> str:
    return f"{workload}[{short}]"


def make_group(
    session: pytest.Session, parity: ParitySession, wanted: Callable[[str], bool]
) -> ParityGroup:
    """Return the group of all items, topology by topology.

    Args:
        session: pytest's.
        parity: says what there is, runs the arms and judges.
        wanted: whether to make the item of a node id.
    """
    # A path where nothing is: hooks of a conftest.py are for the tests of its own folder.
    root: ParityGroup = ParityGroup.from_parent(
        session, name=ROOT, nodeid=ROOT, path=session.config.rootpath / ROOT
    )
    for topology in parity.topologies:
        group: ParityGroup = ParityGroup.from_parent(root, name=topology)
        root.children.append(group)
        group.children = [
            ParityItem.from_parent(
                group,
                name=_name(workload.name, short),
                session_of=parity,
                topology=topology,
                workload=workload.name,
                candidate=backend,
            )
            for workload in parity.suite.workloads
            for backend, short in parity.candidates.items()
            if wanted(node_id(topology, workload.name, short))
        ]
    return root
