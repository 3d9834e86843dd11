"""What two captures' engines differ in: release, torch, dtype and the rest that decides outputs."""

from __future__ import annotations

from pathlib import PurePath

from pydantic import BaseModel, ConfigDict, Field

from vllm_ray_compat.parity import capture as cap

#: Of the engine record, and whether two captures that differ in it are across versions.
_OF_ENGINE = {
    "vllm": True,
    "torch": True,
    "dtype": True,
    "async_scheduling": True,
    "enforce_eager": True,
    "v2_model_runner": True,
    "ray": False,
    "python": False,
    "executor": False,
    "repairs": False,
}


class EngineDifference(BaseModel):
    """One property in which the engines of two arms differ."""

    model_config = ConfigDict(extra="forbid")

    topology: str
    reference: str
    candidate: str
    name: str
    reference_value: str | None
    candidate_value: str | None
    decides_outputs: bool = Field(description="Outputs may differ for this alone.")


def engine_differences(
    topology: str,
    names: tuple[str, str],
    reference: tuple[cap.Header, cap.Engine | None],
    candidate: tuple[cap.Header, cap.Engine | None],
) -> list[EngineDifference]:
    """Return what differs between two arms beyond the backend that was asked for."""
    pairs: list[tuple[str, object, object, bool]] = []
    (left, mine), (right, theirs) = reference, candidate
    for name, decides in _OF_ENGINE.items():
        pairs.append((name, getattr(mine, name, None), getattr(theirs, name, None), decides))
    # The folder is another one on every machine.
    models = PurePath(left.model).name, PurePath(right.model).name
    pairs.append(("model", *models, True))
    pairs.append(("engine_core", left.engine_core, right.engine_core, True))
    pairs.append(("profile", left.profile, right.profile, True))
    return [
        EngineDifference(
            topology=topology,
            reference=names[0],
            candidate=names[1],
            name=name,
            reference_value=_text(one),
            candidate_value=_text(other),
            decides_outputs=decides,
        )
        for name, one, other, decides in pairs
        if one != other
    ]


def _text(value: object) -> str | None:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return None if value is None else str(value)
