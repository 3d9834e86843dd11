"""The published JSON Schemas of the files that parity reads and writes, made from the models."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from vllm_ray_compat.errors import unknown
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity import selftest, workloads
from vllm_ray_compat.parity.report import data as rep

_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Name -> title and the schema that the file names.
SCHEMAS: dict[str, tuple[str, str]] = {
    "capture": ("One line of a capture", cap.SCHEMA),
    "suite": ("A suite of workloads", workloads.SCHEMA),
    "report": ("report.json", rep.SCHEMA),
    "selftest": ("What parity selftest --json prints", selftest.SCHEMA),
}


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema called *name*.

    Raises:
        UsageError: there is none (with a suggestion).
    """
    if name not in SCHEMAS:
        raise unknown("schema", name, SCHEMAS)
    title, named = SCHEMAS[name]
    # A suite is read as it is written; the others are checked as they come out.
    adapters: dict[str, TypeAdapter[Any]] = {
        "capture": TypeAdapter(cap.Record),
        "suite": TypeAdapter(workloads.Suite),
        "report": TypeAdapter(rep.Report),
        "selftest": TypeAdapter(selftest.SelfTest),
    }
    made = adapters[name].json_schema(mode="validation" if name == "suite" else "serialization")
    holder = made["$defs"]["Header"] if name == "capture" else made
    holder["properties"]["schema"] = {"const": named, "title": "Schema", "type": "string"}
    holder["required"] = sorted({*holder.get("required", []), "schema"})
    return {"$schema": _DIALECT, "$id": named, **made, "title": title}
