"""The result of a benchmark as JSON: all turns, in order, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vllm_ray_compat.bench.conclude import Comparison, compare
from vllm_ray_compat.bench.figure import Figure
from vllm_ray_compat.bench.machine import Machine
from vllm_ray_compat.bench.metrics import START
from vllm_ray_compat.bench.protocol import Ready
from vllm_ray_compat.errors import UsageError

Kind = Literal["control-plane", "decode"]
Role = Literal["reference", "candidate", "floor"]


class Turn(BaseModel):
    """One arm, measured once."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    in_pass: int = Field(ge=0, alias="pass")
    place: int = Field(ge=0, description="In the pass: 0 was measured first.")
    arm: str
    engine: int = Field(ge=1, description="Which start of this arm in this topology it was.")
    at_s: float = Field(description="When the turn began, from the start of the run.")
    rested: bool = Field(description="Whether all engines were at rest when it began.")
    measured: dict[str, Figure]


class ArmResult(BaseModel):
    """An arm of a topology: what ran, read from the live thing, and what was measured of it."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    name: str
    role: Role
    backend: str
    about: Ready = Field(description="Of its last start.")
    medians: dict[str, Figure] = Field(description="Of all its turns.")


class Bench(BaseModel):
    """The result of a run; what the report, the plot and a baseline are made of."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    schema_: Literal["vllm_ray_compat.bench/1"] = Field(
        default="vllm_ray_compat.bench/1", alias="schema"
    )
    kind: Kind
    package: str
    started_at: float = Field(description="Seconds since the epoch.")
    took_s: float
    complete: bool = Field(description="False: it was interrupted, or an arm died.")
    command: str = Field(description="What to enter to repeat it.")
    machine: Machine
    engines: Literal["fresh", "kept"] = Field(
        description="A new engine for each turn, or one for all turns, side by side."
    )
    engine_core: Literal["inproc", "process"]
    engine_args: dict[str, object]
    variables: dict[str, str] = Field(
        description="What the caller's shell had set for all arms: vLLM, NCCL, threads, repairs."
    )
    margin: float
    arms: list[ArmResult]
    comparisons: dict[str, list[Comparison]] = Field(description="By topology.")
    turns: list[Turn]
    remarks: list[str] = []

    def to_json(self) -> str:
        """Return the text of its file."""
        return self.model_dump_json(by_alias=True, indent=1) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a result."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Bench.model_json_schema(by_alias=True, mode="serialization"),
        "title": "What bench control-plane and bench decode write",
    }


def compared(
    turns: Iterable[Turn], reference: str, candidates: Iterable[str], margin: float
) -> list[Comparison]:
    """Compare the candidates with the reference over the turns of one topology.

    Passes in which one of a pair is missing, because the run ended there, are left out. What has no
    ratio (a value of 0) is not compared; nor are the phases of a start, but their sum.
    """
    by_pass: dict[int, dict[str, dict[str, float]]] = {}
    for turn in turns:
        by_pass.setdefault(turn.in_pass, {})[turn.arm] = turn.measured
    found = []
    for candidate in candidates:
        both = {reference, candidate}
        pairs = [(p[reference], p[candidate]) for p in by_pass.values() if both <= p.keys()]
        for key in pairs[0][0] if pairs else ():
            if key.startswith(f"{START}."):
                continue
            of_key = [(a[key], b[key]) for a, b in pairs if a.get(key) and b.get(key)]
            if of_key and len(of_key) == len(pairs):
                theirs, mine = zip(*of_key, strict=True)
                found.append(compare(candidate, key, theirs, mine, margin))
    return found


def read(path: Path) -> Bench:
    """Read a result, or a baseline.

    Raises:
        UsageError: there is none, or it is not one.
    """
    try:
        return Bench.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text, so no result of a benchmark.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise UsageError(
            f"{path} is no result of `vllm-ray-compat bench`: {where}: {first['msg']}."
        ) from None
