"""Look at a Ray cluster from a process of its own, which is given a time and ended after it.

Connecting may hang, or end the process that does it; so it is never done in ours. A cluster is
never started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from vllm_ray_compat.doctor.view import Connection, Facts, View

_PROBE = "vllm_ray_compat.doctor.ray_probe"
#: Seconds that the process gets to end by itself after its time is over.
_GRACE_S = 2.0
#: Seconds for a bare TCP connection to the head.
_CONNECT_S = 3.0
#: Characters of Ray's last line that are told.
_LONGEST_LINE = 300

_FACTS = TypeAdapter(tuple[Facts, ...])
_CONNECTIONS = TypeAdapter(tuple[Connection, ...])


@dataclass(frozen=True)
class Look:
    """What was seen.

    Attributes:
        address: the cluster that was asked for or found.
        view: nodes and placement groups; None: it could not be looked at.
        unreachable: why not.
        asked: whether somebody named the address (``--address`` or ``RAY_ADDRESS``).
        facts: of every living node; None: they were not asked for, or time ran out.
        connections: between every two nodes; the same.
        cut_short: what time ran out over.
    """

    address: str | None
    view: View | None = None
    unreachable: str | None = None
    asked: bool = False
    facts: tuple[Facts, ...] | None = None
    connections: tuple[Connection, ...] | None = None
    cut_short: str | None = None


def look(
    address: str | None, environ: Mapping[str, str], *, probes: bool, timeout_s: float
) -> Look:
    """Look at the cluster at *address*.

    Args:
        address: ``host:port`` or ``auto``; None: ``RAY_ADDRESS``, or the cluster that runs on this
            machine.
        environ: where ``RAY_ADDRESS`` and Ray's token are read.
        probes: ask a process on every node, too.
        timeout_s: seconds for all of it.
    """
    asked = address or environ.get("RAY_ADDRESS") or None
    where = asked or "auto"
    if refusal := _refusal(where) or _no_answer(where):
        return Look(where, unreachable=refusal, asked=asked is not None)
    answers, end = _run(where, environ, probes, timeout_s)
    seen = {answer["step"]: answer["data"] for answer in answers}
    if "view" not in seen:
        reason = seen.get("failed") or f"the process that looked at the Ray cluster {where} {end}"
        return Look(where, unreachable=reason, asked=asked is not None)
    view = View.model_validate(seen["view"])
    wanted = ["facts", "connections"] if probes else []
    late = [step for step in wanted if step not in seen]
    return Look(
        view.address,
        view,
        asked=asked is not None,
        facts=_FACTS.validate_python(seen["facts"]) if "facts" in seen else None,
        connections=(
            _CONNECTIONS.validate_python(seen["connections"]) if "connections" in seen else None
        ),
        cut_short=(seen.get("failed") or f"the process that asked {end}") if late else None,
    )


def _refusal(where: str) -> str | None:
    """Return why an address cannot be looked at, or None."""
    if where.startswith("ray://"):
        return (
            f"{where} is Ray Client's, and an engine cannot run through it; name the cluster's own "
            "address, HOST:PORT"
        )
    if where == "local":
        return "RAY_ADDRESS=local starts a new cluster for every process: there is none to look at"
    return None


def _no_answer(where: str) -> str | None:
    """Return why nobody answers at ``host:port``; Ray itself would try for a long time."""
    host, colon, port = where.rpartition(":")
    if not colon or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return f"nobody answers at the Ray address {where}: {_reason(error)}"
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_S:.0f} s"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _run(
    where: str, environ: Mapping[str, str], probes: bool, timeout_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Run the process; returns its answers, and how it ended with the last that it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", _PROBE, where, str(timeout_s), str(int(probes))],
        env={**environ, "RAY_USAGE_STATS_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    end = "ended"
    try:
        out, err = process.communicate(timeout=timeout_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        end = f"did not end within {timeout_s:.0f} s"
        _kill(process)
        out, err = process.communicate()
    except BaseException:
        _kill(process)
        raise
    lines = err.decode(errors="replace").split("\n")
    if last := next((line.strip() for line in reversed(lines) if line.strip()), ""):
        end += f"; the last it said: {last[-_LONGEST_LINE:]}"
    # The last line may be half written.
    answers = [json.loads(line) for line in out.decode().split("\n")[:-1]]
    return answers, end


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
