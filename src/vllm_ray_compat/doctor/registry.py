"""The table of checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_ray_compat.doctor import cluster, configuration, log, machine
from vllm_ray_compat.doctor.checks import Check, Need, validate
from vllm_ray_compat.doctor.findings import Group
from vllm_ray_compat.errors import unknown

_DECISION = frozenset({Need.DECISION})
_CLUSTER = frozenset({Need.CLUSTER})
_PROBES = frozenset({Need.PROBES})
_LOG = frozenset({Need.LOG})

CHECKS: tuple[Check, ...] = (
    Check(
        "flag",
        Group.CONFIGURATION,
        "Is VLLM_USE_RAY_V2_EXECUTOR_BACKEND 0, 1 or unset?",
        configuration.flag,
    ),
    Check(
        "settings",
        Group.CONFIGURATION,
        "Is every RAYCOMPAT_ variable one that exists, with a value it takes?",
        configuration.settings,
    ),
    Check(
        "executor",
        Group.CONFIGURATION,
        'Which executor serves "ray" here, and is there something to warn of?',
        configuration.executor,
        _DECISION,
    ),
    Check(
        "defects",
        Group.CONFIGURATION,
        "Which known defects of this vLLM and this Ray apply, and which are repaired?",
        configuration.known_defects,
        _DECISION,
    ),
    Check(
        "bundle-indices",
        Group.CONFIGURATION,
        "Is VLLM_RAY_BUNDLE_INDICES a list of bundles, one for each rank?",
        configuration.bundle_indices,
    ),
    Check(
        "host-ip",
        Group.CONFIGURATION,
        "Is VLLM_HOST_IP an address of this machine?",
        configuration.host_ip,
    ),
    Check(
        "shared-memory",
        Group.MACHINE,
        "Is /dev/shm large enough for the message queues?",
        machine.shared_memory,
    ),
    Check(
        "open-files",
        Group.MACHINE,
        "May a process open as many files as Ray wants?",
        machine.open_files,
    ),
    Check(
        "leftovers",
        Group.MACHINE,
        "Have killed workers left shared memory behind?",
        machine.leftovers,
    ),
    Check(
        "niceness",
        Group.MACHINE,
        "Would Ray's workers started from here starve beside a driver that spins?",
        machine.niceness,
    ),
    Check(
        "nodes",
        Group.CLUSTER,
        "Does the Ray cluster answer, and which nodes has it?",
        cluster.nodes,
        _CLUSTER,
    ),
    Check(
        "devices",
        Group.CLUSTER,
        "How many devices has each node, and who holds those that are not free?",
        cluster.devices,
        _CLUSTER,
    ),
    Check(
        "waiting-groups",
        Group.CLUSTER,
        "Does a placement group wait for what is not there?",
        cluster.waiting_groups,
        _CLUSTER,
    ),
    Check(
        "fit",
        Group.CLUSTER,
        "Do the ranks fit now, and each tensor-parallel group on one node?",
        cluster.fits,
        _CLUSTER,
    ),
    Check(
        "rank-order",
        Group.CLUSTER,
        "Which ranks does VLLM_RAY_BUNDLE_INDICES make of the placement groups there are?",
        cluster.ranks_by_hand,
        _CLUSTER,
    ),
    Check(
        "driver-devices",
        Group.CLUSTER,
        "Has the driver's node a device, which legacy cannot do without?",
        cluster.driver_devices,
        _CLUSTER,
    ),
    Check(
        "addresses",
        Group.CLUSTER,
        "Has every node an address of its own?",
        cluster.addresses,
        _CLUSTER,
    ),
    Check(
        "own-address",
        Group.CLUSTER,
        "Do vLLM and Ray know this node by the same address?",
        cluster.own_address,
        _CLUSTER,
    ),
    Check(
        "versions",
        Group.CLUSTER,
        "Is the same vLLM, Ray, torch and Python on all nodes, and this package?",
        cluster.versions,
        _PROBES,
    ),
    Check(
        "priority",
        Group.CLUSTER,
        "Do Ray's workers on each node run at a priority at which they do not starve?",
        cluster.priorities,
        _PROBES,
    ),
    Check(
        "host-names",
        Group.CLUSTER,
        "Does a node's host name lead where Gloo cannot be reached?",
        cluster.host_names,
        _PROBES,
    ),
    Check(
        "reach",
        Group.CLUSTER,
        "Does every node reach an ephemeral TCP port of every other one?",
        cluster.reach,
        _PROBES,
    ),
    Check(
        "known-lines",
        Group.LOG,
        "Which lines of the log are known, and what do they mean?",
        log.known_lines,
        _LOG,
    ),
)

validate(CHECKS)


def chosen(words: Iterable[str]) -> tuple[Check, ...]:
    """Return the checks that *words* name, each the name of a check or of a group; none: all.

    Raises:
        UsageError: a word names none (with a suggestion).
    """
    wanted = list(words)
    known = [*(group.value for group in Group), *(check.name for check in CHECKS)]
    known = list(dict.fromkeys(known))
    for word in wanted:
        if word not in known:
            raise unknown("check", word, known)
    return tuple(
        check
        for check in CHECKS
        if not wanted or check.name in wanted or check.group.value in wanted
    )
