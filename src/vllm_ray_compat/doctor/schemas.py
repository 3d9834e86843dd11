"""The published JSON Schema of what ``doctor --json`` prints, made from the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_ray_compat.doctor.findings import SCHEMA, Examination

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def examination_schema() -> dict[str, Any]:
    """Return the JSON Schema of an examination."""
    made = Examination.model_json_schema(mode="serialization")
    made["required"] = sorted({*made["required"], "schema"})
    return {"$schema": _DIALECT, "$id": SCHEMA, **made, "title": "What doctor --json prints"}


#: Name of the file -> what makes its content.
SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {"doctor": examination_schema}
