"""What vLLM's own executors are known not to do, in one table.

A behaviour in it is expected to fail (``xfail``, strict): a release that has learnt it, or a
repair that gives it to it, turns the run red until the table says so. An entry falls away where
the executor that ran has a repair in force that is named in it, so the same table serves
``RAYCOMPAT_REPAIRS=none`` and ``all``. This package's own executors have no entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class KnownDifference:
    """One behaviour that executors of vLLM lack.

    Attributes:
        backends: which of vLLM's executors, ``mp``, ``v2`` or ``legacy``.
        behaviours: names of tests.
        since: the first release that lacks it.
        fixed_in: the first release that has it again; None while none has.
        defects: ids of the facts this package is built on.
        reason: what a user sees.
        source: where it is to be read.
        repaired_by: repairs of which any one takes it away.
        cases: only these cases of a test that has several; empty is all.
    """

    backends: tuple[str, ...]
    behaviours: tuple[str, ...]
    since: str
    fixed_in: str | None
    defects: tuple[str, ...]
    reason: str
    source: str
    repaired_by: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()

    def applies_to(self, backend: str, behaviour: str, case: str | None, release: Version) -> bool:
        """Say whether *behaviour* of *backend* is known to fail on *release*."""
        return (
            backend in self.backends
            and behaviour in self.behaviours
            and (not self.cases or case in self.cases)
            and Version(self.since) <= release
            and (self.fixed_in is None or release < Version(self.fixed_in))
        )

    def __str__(self) -> str:
        return ", ".join([*self.defects, self.reason]) + f" ({self.source})"


KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = (
    KnownDifference(
        ("mp", "v2"),
        ("test_the_call_after_an_error", "test_the_call_after_a_timeout"),
        "0.15.0",
        None,
        ("MQ-1",),
        "answers nobody read stay in the queues, and every later call gets those of an earlier one",
        "MultiprocExecutor.collective_rpc returns at the first rank that fails or is late",
        repaired_by=("v2-stale-answers",),
    ),
    KnownDifference(
        ("v2",),
        ("test_a_group_larger_than_needed",),
        "0.20.0",
        None,
        ("V2-1",),
        "the message queue waits for a reader in every bundle of the driver's node, for ever",
        "RayExecutorV2._init_executor counts all bundles of the group",
        repaired_by=("v2-oversized-group", "whole-tp-groups"),
    ),
    KnownDifference(
        ("v2",),
        ("test_the_group_it_made_is_removed",),
        "0.20.0",
        None,
        ("V2-3",),
        "a placement group the executor made stays until the process ends, and holds its devices",
        "RayExecutorV2.shutdown",
        repaired_by=("v2-shutdown",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_the_group_it_made_is_removed",),
        "0.15.0",
        "0.33.0",
        ("L-3",),
        "a placement group the executor made stays until the process ends, and holds its devices",
        "RayDistributedExecutor.shutdown",
        repaired_by=("legacy-shutdown",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_shutdown_ends_the_workers",),
        "0.15.0",
        "0.33.0",
        ("L-3",),
        "before the first step shutdown only writes to the log",
        "RayDistributedExecutor.shutdown asks for forward_dag",
        repaired_by=("legacy-shutdown",),
        cases=("tp2pp2", "tp1"),
    ),
    KnownDifference(
        ("v2",),
        ("test_shared_memory_is_freed",),
        "0.20.0",
        None,
        ("V2-7",),
        "workers are killed without a shutdown, and their queues stay in /dev/shm",
        "RayExecutorV2.shutdown",
        repaired_by=("v2-shutdown",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_shared_memory_is_freed",),
        "0.15.0",
        "0.33.0",
        ("L-3",),
        "workers are killed, and the message queue of their tensor parallel group stays in /dev/shm",
        "RayDistributedExecutor.shutdown",
        repaired_by=("legacy-shutdown",),
        cases=("tp2",),
    ),
    KnownDifference(
        ("mp",),
        ("test_shared_memory_is_freed",),
        "0.15.0",
        None,
        (),
        "the response queue of a worker that died stays in /dev/shm",
        "MultiprocExecutor.shutdown",
        cases=("pp2",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_a_dead_worker_is_noticed", "test_a_late_callback_is_called"),
        "0.15.0",
        "0.33.0",
        ("L-8",),
        "nobody watches the workers, and register_failure_callback is the base class's: nothing",
        "RayDistributedExecutor; vLLM issue 16259",
        repaired_by=("legacy-monitor",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_health_after_a_death",),
        "0.15.0",
        "0.33.0",
        ("L-8",),
        "check_health returns at once, whatever the state of the workers",
        "RayDistributedExecutor.check_health",
        repaired_by=("legacy-monitor",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_a_future", "test_futures_out_of_order"),
        "0.20.0",
        "0.33.0",
        (),
        "collective_rpc(non_block=True) takes the list of results for a ModelRunnerOutput",
        "FutureWrapper.result in vllm/v1/executor/ray_utils.py",
        repaired_by=("legacy-future",),
    ),
    KnownDifference(
        ("legacy",),
        ("test_the_result_of_one_rank",),
        "0.15.0",
        "0.33.0",
        (),
        "collective_rpc takes no unique_reply_rank, which the base class does not ask for",
        "RayDistributedExecutor.collective_rpc",
    ),
)


def known_difference(
    backend: str, behaviour: str, case: str | None, version: str, repairs: Iterable[str]
) -> KnownDifference | None:
    """Return why *behaviour* is expected to fail, or None.

    Args:
        backend: of an executor of vLLM's.
        behaviour: name of the test.
        case: which of its cases, if it has several.
        version: of vLLM.
        repairs: names of those in force in the executor that ran.
    """
    try:
        release = Version(Version(version).base_version)
    except InvalidVersion:
        return None
    in_force = set(repairs)
    for known in KNOWN_DIFFERENCES:
        if known.applies_to(backend, behaviour, case, release) and not (
            in_force & {*known.repaired_by}
        ):
            return known
    return None
