"""Checks of the configuration: what the environment says, before anything runs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from vllm_ray_compat.deprecations import (
    FlagIgnoredSinceVllm033Warning,
    LegacyExecutorRemovedInVllm033Warning,
    UnknownSettingWarning,
)
from vllm_ray_compat.doctor.advisories import advisories
from vllm_ray_compat.doctor.context import Context
from vllm_ray_compat.doctor.findings import Finding, note, ok, problem, warning
from vllm_ray_compat.executors import catalog
from vllm_ray_compat.executors import repairs as known_repairs
from vllm_ray_compat.executors.rank_order import INDICES_NAME, rank_order, read_bundle_indices
from vllm_ray_compat.flag import FlagValue, InvalidFlagError, read_flag
from vllm_ray_compat.names import FLAG_NAME
from vllm_ray_compat.schedule import Backend
from vllm_ray_compat.selector import PROVIDER_VLLM
from vllm_ray_compat.settings import SettingsError, describe_unknown, read_settings

HOST_IP = "VLLM_HOST_IP"

_WAYS_OUT = {
    LegacyExecutorRemovedInVllm033Warning: "Move to V2: migration guide, sections 2 to 4.",
    FlagIgnoredSinceVllm033Warning: "Unset the flag, or set RAYCOMPAT_RESTORE_LEGACY=1 as well.",
}


def flag(context: Context) -> Iterator[Finding]:
    """Read vLLM's flag."""
    try:
        found = read_flag(context.environ)
    except InvalidFlagError as error:
        yield problem(str(error), FLAG_NAME, "Set 0 or 1, or unset it.", value=error.raw)
        return
    if found.value is FlagValue.UNSET:
        yield ok(f"{FLAG_NAME} is unset: the release decides")
    else:
        yield ok(f"{FLAG_NAME}={(found.raw or '').strip()}: {found.value.value}")


def settings(context: Context) -> Iterator[Finding]:
    """Read our own variables."""
    try:
        found = read_settings(context.environ)
    except SettingsError as error:
        yield problem(str(error), "environment", "Correct or remove what is named.")
        return
    for name in found.unknown:
        yield warning(describe_unknown(name), name, "Correct the name, or unset it.")
    if not found.unknown:
        yield ok("no RAYCOMPAT_ variable is misspelt or has a value that is not accepted")


def executor(context: Context) -> Iterator[Finding]:
    """Say what serves "ray", and what the decision warns of."""
    decision = context.decision
    yield ok(decision.one_line(), decision=decision.to_dict())
    if not decision.routed:
        yield note(f"This package does not route here. {'; '.join(decision.reasons)}.")
    for text in decision.notes:
        yield note(text)
    tell = problem if decision.strict else warning
    for found in decision.warnings:
        if isinstance(found, UnknownSettingWarning):
            continue  # told by the check of the settings
        way_out = _WAYS_OUT.get(type(found), "See `vllm-ray-compat status`.")
        yield tell(str(found), FLAG_NAME, way_out, category=type(found).__name__)
    if not catalog.is_present(decision):
        yield problem(
            catalog.missing_text(decision), decision.executor, "See `vllm-ray-compat status`."
        )


def known_defects(context: Context) -> Iterator[Finding]:
    """Tell the defects of what runs here: those that are repaired, and those that are not."""
    decision = context.decision
    if decision.provider == PROVIDER_VLLM:
        yield from _repairs(context)
    for advisory in advisories():
        if not advisory.applies(
            decision.backend, decision.vllm, context.ray_version, context.environ
        ):
            continue
        where = ", ".join(advisory.set_here(context.environ)) or (
            f"Ray {context.ray_version}" if advisory.ray else None
        )
        yield Finding(
            level=advisory.level,
            what=advisory.symptom,
            where=where,
            do=advisory.do,
            sources=advisory.sources,
            details={"advisory": advisory.name},
        )


def _repairs(context: Context) -> Iterator[Finding]:
    decision = context.decision
    applied = decision.repairs
    if applied:
        names = [repair.name for repair in applied]
        yield ok(
            f"{len(names)} known defects of vLLM {decision.vllm}'s {decision.backend.value} "
            f"executor are repaired or refused here: {', '.join(names)}",
            repaired=names,
        )
    for repair in known_repairs.in_force(decision.backend, decision.vllm):
        if repair not in applied:
            yield warning(
                repair.symptom,
                f"vLLM {repair.releases()}, not repaired here",
                "Let RAYCOMPAT_REPAIRS apply it, and this package load (RAYCOMPAT_DISABLE, "
                "VLLM_PLUGINS)."
                if not decision.routed
                else f"Do not leave {repair.name} out of RAYCOMPAT_REPAIRS.",
                *repair.reports,
                repair=repair.name,
            )
    if not known_repairs.are_known_for(decision.vllm):
        yield note(
            f"The known defects of vLLM {decision.vllm} are not known to this version: nothing is "
            "repaired."
        )


def bundle_indices(context: Context) -> Iterator[Finding]:
    """Read VLLM_RAY_BUNDLE_INDICES as the executors do, and hold it against the sizes."""
    listed = read_bundle_indices(context.environ)
    if listed is None:
        yield ok(f"{INDICES_NAME} is not set: ranks go to bundles in the executor's own order")
        return
    name_each = "Name one bundle for each rank, each once, with a comma between them: 0,1,2,3."
    if listed.error is not None:
        yield problem(listed.error, INDICES_NAME, name_each, value=listed.raw)
        if listed.indices is None:
            return
    indices, ranks = listed.indices or (), context.options.world_size
    if ranks is None:
        yield note(
            f"It names {len(indices)} bundles; whether that is one for each rank was not asked.",
            INDICES_NAME,
            "Give --tp and --pp.",
        )
    elif ranks != len(indices):
        yield problem(
            f"{INDICES_NAME}={listed.raw} names {len(indices)} bundles, and there are {ranks} "
            "ranks (tensor parallel size x pipeline parallel size).",
            INDICES_NAME,
            name_each,
            named=len(indices),
            ranks=ranks,
        )
    elif listed.error is None:
        yield ok(f"{INDICES_NAME} names a bundle for each of {ranks} ranks", INDICES_NAME)
    yield _difference_in_order(context.backend)


def _difference_in_order(backend: Backend | None) -> Finding:
    rules = {b.value: rank_order(b, listed=True) for b in Backend}
    here = f" Here it is {backend.value}." if backend is not None else ""
    return note(
        "The two executors make another order of it."
        f"{here} {'. '.join(f'{name}: {rule.text}' for name, rule in rules.items())}.",
        INDICES_NAME,
        "For the same ranks with both, name the bundles of the driver's node first, then those of "
        "one further node after the other, nodes with fewer ranks first.",
        rank_order={name: rule.name for name, rule in rules.items()},
    )


def host_ip(context: Context) -> Iterator[Finding]:
    """See whether VLLM_HOST_IP is an address of this machine."""
    address = context.environ.get(HOST_IP, "")
    if not address:
        yield ok(f"{HOST_IP} is not set: vLLM takes the address of the default route")
        return
    fault = not_ours(address)
    if fault is None:
        yield ok(f"{HOST_IP}={address} is an address of this machine")
    else:
        yield problem(
            f"{HOST_IP}={address} {fault}: what listens there cannot start, and other nodes would "
            "look for it elsewhere.",
            HOST_IP,
            "Give it the address by which Ray knows this node (`ray status`), or unset it. It "
            "differs from node to node.",
        )


def not_ours(address: str) -> str | None:
    """Return why nothing here can listen on *address*, or None."""
    try:
        infos = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return "is no address and no name that leads to one"
    for family, kind, _, _, where in infos:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(where)
            return None
    return "is no address of this machine"
