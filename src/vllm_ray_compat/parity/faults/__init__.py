"""Seeded faults: alter a capture so that the comparison must turn red. They prove it can fail.

The harmless ones at the end are the other half of the proof: the comparison must not see them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from vllm_ray_compat.errors import UsageError, unknown
from vllm_ray_compat.parity.capture import Capture, read_capture
from vllm_ray_compat.parity.faults import completions, harmless, logprobs, placing, requests
from vllm_ray_compat.parity.faults.fault import Fault, Kind
from vllm_ray_compat.parity.faults.write import write_capture

__all__ = ["FAULTS", "KINDS", "Fault", "FaultError", "inject", "inject_file", "write_capture"]


class FaultError(UsageError):
    """No result of the capture can carry the fault."""


#: Every kind by its name.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for group in (completions, logprobs, requests, placing, harmless)
    for kind in group.KINDS
}

#: The kinds that ``--inject-fault`` takes.
FAULTS: tuple[str, ...] = tuple(KINDS)


def inject(capture: Capture, kind: str, random: Random | None = None) -> tuple[Capture, Fault]:
    """Return a copy of *capture* with the fault *kind* in it, and where it is.

    Args:
        capture: stays as it is.
        kind: one of ``FAULTS``.
        random: chooses the place; default always the same one.

    Raises:
        UsageError: there is no such fault (with a suggestion).
        FaultError: the capture holds no result that can carry it.
    """
    if kind not in KINDS:
        raise unknown("fault", kind, FAULTS)
    altered = capture.model_copy(deep=True)
    places = list(KINDS[kind].places(altered))
    if not places:
        raise FaultError(
            f"The fault {kind!r} needs a result that can carry it, and the candidate's capture "
            "has none. Choose a suite with logprobs and several requests, for example smoke."
        )
    at = KINDS[kind].usual(places) if random is None else random.choice(places)
    return altered, KINDS[kind].put(altered, at, random or Random(0))


def inject_file(path: Path, kind: str, target: Path) -> Fault:
    """Write a copy of the capture *path* with the fault *kind* to *target*; returns the fault.

    Raises:
        UsageError: see :func:`inject`.
        CaptureError: *path* is no capture.
    """
    altered, fault = inject(read_capture(path), kind)
    write_capture(altered, target, Random(0) if kind == harmless.KEY_ORDER else None)
    return fault
