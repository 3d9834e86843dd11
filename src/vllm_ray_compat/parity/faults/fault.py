"""What a seeded fault is: where it can be put, how, and where it must be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity.capture import Capture, Output, Result


class Fault(BaseModel):
    """What was altered, and where it must be found."""

    model_config = ConfigDict(extra="forbid")

    kind: str
    field: str
    workload: str
    request: str
    position: int | None
    output: int | None = None
    also: list[tuple[str, str]] = Field(
        default=[], description="Workload and request of others that must differ through it."
    )
    harmless: bool = Field(default=False, description="Nothing must be found.")


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    ``places`` yields what ``put`` takes: every place of a capture that can carry the fault.
    ``put`` alters the capture at one place and says where the fault must be found; it may draw
    from the generator it gets. ``usual`` chooses the place where no chance is wanted.
    """

    name: str
    about: str
    places: Callable[[Capture], Iterator[Any]]
    put: Callable[[Capture, Any, Random], Fault]
    usual: Callable[[list[Any]], Any] = lambda places: places[0]


def fault(
    kind: str, field: str, result: Result, position: int | None, output: int | None = None
) -> Fault:
    """Return the fault of *field* in *result*."""
    return Fault(
        kind=kind,
        field=field,
        workload=result.workload,
        request=result.request,
        position=position,
        output=output,
    )


def outputs(capture: Capture) -> Iterator[tuple[int, int, Output]]:
    """Yield every completion, with the place of its result and its own."""
    for r, result in enumerate(capture.results):
        for o, output in enumerate(result.outputs):
            yield r, o, output


def place_in_workload(capture: Capture, index: int) -> int:
    """Return how many results of its workload come before the one at *index*."""
    workload = capture.results[index].workload
    return sum(1 for result in capture.results[:index] if result.workload == workload)
