"""Checks of this machine: what vLLM and Ray want of its kernel."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from vllm_ray_compat.doctor.context import Context
from vllm_ray_compat.doctor.findings import Finding, note, ok, problem, warning
from vllm_ray_compat.shared_memory import FOLDER, mapped_segments

MIB = 1 << 20
#: A message queue of vLLM: 10 chunks of 24 MiB (VLLM_MQ_MAX_CHUNK_BYTES_MB).
_CHUNKS = 10
_CHUNK_MIB = 24
#: Docker gives a container 64 MiB.
_NEARLY_FULL_MIB = 64
#: What Ray wants (it warns below 4096).
_FILES_WANTED = 8192
_FILES_LEAST = 4096
#: What Ray gives its workers when nobody says otherwise.
_RAYS_NICENESS = 15
#: How the segments of vLLM's workers and Ray's channels are named.
_LEFTOVERS = ("psm_*", "*-cpushm_*", "sem.hdr*", "sem.obj*")
_NICENESS = "RAY_worker_niceness"


def shared_memory(context: Context) -> Iterator[Finding]:
    """Compare /dev/shm with what the message queues of the engine may fill."""
    try:
        found = os.statvfs(FOLDER)
    except OSError as error:
        yield problem(
            f"{FOLDER} cannot be looked at: {error.strerror}.",
            str(FOLDER),
            "Mount a tmpfs there: vLLM's message queues and Ray's object store need it.",
        )
        return
    total, free = found.f_frsize * found.f_blocks // MIB, found.f_frsize * found.f_bavail // MIB
    ranks = context.options.world_size or 1
    yield judge_shared_memory(total, free, ranks, _chunk_mib(context))


def _chunk_mib(context: Context) -> int:
    text = context.environ.get("VLLM_MQ_MAX_CHUNK_BYTES_MB", "")
    return int(text) if text.isdigit() else _CHUNK_MIB


def judge_shared_memory(total: int, free: int, ranks: int, chunk_mib: int = _CHUNK_MIB) -> Finding:
    """Judge sizes in MiB: one queue to all workers, and one back from each.

    A queue takes no memory before it is written to, and small messages touch little of it: only a
    folder that is nearly full is a problem already.
    """
    queues = _CHUNKS * (chunk_mib + ranks * _CHUNK_MIB)
    said = f"{FOLDER} has {total} MiB, {free} MiB of them free"
    wants = f"the message queues of {ranks} local worker{'s' * (ranks > 1)} fill up to {queues} MiB"
    more = (
        "Give the container more shared memory (docker --shm-size=10g; in Kubernetes an emptyDir "
        "with medium: Memory at /dev/shm), or free what is left there."
    )
    sizes = {"total_mib": total, "free_mib": free, "queues_mib": queues}
    if free < _NEARLY_FULL_MIB:
        return problem(
            f"{said}; {wants}. A full folder ends a worker with a bus error.",
            str(FOLDER),
            more,
            "man 5 tmpfs",
            **sizes,
        )
    if free < queues:
        return warning(f"{said}; {wants}.", str(FOLDER), more, "man 5 tmpfs", **sizes)
    return ok(f"{said}; {wants}", str(FOLDER), **sizes)


def open_files(_: Context) -> Iterator[Finding]:
    """See how many files a process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge_open_files(soft, hard)


def judge_open_files(soft: int, hard: int) -> Finding:
    """Judge the limits; Ray raises the soft one to the hard one where it starts."""
    least = float("inf") if hard == resource.RLIM_INFINITY else hard
    said = f"a process may open {_limit(soft)} files, and raise that to {_limit(hard)}"
    if least >= _FILES_WANTED:
        return ok(said, "RLIMIT_NOFILE", soft=soft, hard=hard)
    level = problem if least < _FILES_LEAST // 4 else warning
    return level(
        f"{said}; Ray recommends at least {_FILES_WANTED}.",
        "RLIMIT_NOFILE",
        "ulimit -n 65536 in what starts Ray (LimitNOFILE= in a systemd unit).",
        "Ray 2.60.0, ray/_private/worker.py",
        soft=soft,
        hard=hard,
    )


def _limit(value: int) -> str:
    return "any number of" if value == resource.RLIM_INFINITY else str(value)


def leftovers(_: Context) -> Iterator[Finding]:
    """Look for shared memory that killed workers have left behind."""
    yield from judge_leftovers(*unused_segments(FOLDER, _LEFTOVERS))


def unused_segments(folder: Path, patterns: tuple[str, ...]) -> tuple[list[tuple[str, int]], int]:
    """Return (path, bytes) of segments nobody has mapped, and how many processes hide theirs."""
    candidates = {str(path) for pattern in patterns for path in folder.glob(pattern)}
    used: set[str] = set()
    hidden = 0
    for entry in Path("/proc").iterdir() if candidates else ():
        if entry.name.isdigit():
            used |= mapped_segments(int(entry.name))
            maps = entry / "maps"
            # One that has ended meanwhile hides nothing.
            hidden += not os.access(maps, os.R_OK) and maps.exists()
    found = []
    for path in sorted(candidates - used):
        try:
            found.append((path, Path(path).stat().st_blocks * 512))
        except FileNotFoundError:
            continue  # it has gone meanwhile
    return found, hidden


def judge_leftovers(found: list[tuple[str, int]], hidden: int) -> Iterator[Finding]:
    """Tell how much there is."""
    blind = (
        f" The memory of {hidden} processes could not be looked at; run it as root to be sure."
        if hidden
        else ""
    )
    if not found:
        yield ok(f"no shared memory of workers is left behind.{blind}", str(FOLDER))
        return
    size = sum(bytes_ for _, bytes_ in found) / MIB
    tell = warning if size >= 256 else note
    yield tell(
        f"{len(found)} segments of workers ({size:.0f} MiB) are mapped by no process that can be "
        f"seen: a killed engine has left them.{blind}",
        str(FOLDER),
        "Remove them when no engine is starting, and no other container shares /dev/shm: "
        f"{', '.join(path for path, _ in found[:3])}{', …' if len(found) > 3 else ''}",
        segments=[path for path, _ in found],
        mib=round(size),
    )


def niceness(context: Context) -> Iterator[Finding]:
    """See what priority Ray would give its workers."""
    ranks = context.options.world_size or 1
    yield judge_niceness(
        context.environ.get(_NICENESS), len(os.sched_getaffinity(0)), ranks, "this machine"
    )


def judge_niceness(text: str | None, cores: int, ranks: int, where: str) -> Finding:
    """Judge a niceness: below others' priority matters where a driver that spins shares a core."""
    value = int(text) if text is not None and text.lstrip("-").isdigit() else _RAYS_NICENESS
    said = (
        f"on {where}, Ray's workers run at nice {value}, and {cores} cores are there for "
        f"{ranks} of them"
    )
    facts = {"niceness": value, "cores": cores}
    if value <= 0 or cores > ranks + 1:
        return ok(said, where, **facts)
    return note(
        f"{said[0].upper()}{said[1:]} and for a driver, which spins at nice 0 while it waits: they "
        "starve beside it.",
        where,
        f"Start Ray with {_NICENESS}=0.",
        **facts,
    )
