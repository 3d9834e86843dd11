#!/usr/bin/env python3
"""Write the generated sections of the documents and the JSON Schemas anew.

python scripts/docs.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vllm_ray_compat import tables
from vllm_ray_compat.bench import page, plot, result
from vllm_ray_compat.doctor import tables as of_doctor
from vllm_ray_compat.doctor.schemas import SCHEMAS as DOCTORS
from vllm_ray_compat.parity.schemas import SCHEMAS, schema_of

ROOT = Path(__file__).parent.parent
RESULTS = {
    path.stem: result.read(path) for path in sorted((ROOT / "docs" / "benchmarks").glob("*.json"))
}
SECTIONS = {
    "bench_summary": lambda: page.summary(RESULTS),
    "bench_results": lambda: page.page(RESULTS, "benchmarks"),
    "schedule": tables.schedule_table,
    "decisions": tables.decision_table,
    "settings": tables.settings_table,
    "repairs": tables.repairs_table,
    "checks": of_doctor.checks_table,
    "advisories": of_doctor.advisories_table,
    "signatures": of_doctor.signatures_table,
}
DOCUMENTS = ("README.md", "migration_guide.md", "docs/doctor.md", "docs/benchmarks.md")


def render(text: str) -> str:
    """Return *text* with every generated section filled in."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- generated: {name} -->\n{SECTIONS[name]()}\n<!-- /generated -->"

    return re.sub(r"<!-- generated: (\w+) -->\n.*?<!-- /generated -->", fill, text, flags=re.DOTALL)


def generated() -> Iterator[tuple[str, str]]:
    """Yield the name and the fresh text of every file that is generated, wholly or in part."""
    for name in DOCUMENTS:
        yield name, render((ROOT / name).read_text(encoding="utf-8"))
    for name in SCHEMAS:
        yield f"schemas/{name}.json", json.dumps(schema_of(name), indent=2) + "\n"
    for name, make in {**DOCTORS, "bench": result.json_schema}.items():
        yield f"schemas/{name}.json", json.dumps(make(), indent=2) + "\n"


def draw() -> None:
    """Draw the results; never compared with what is there, it depends on the plotting library."""
    for name, bench in RESULTS.items():
        path = ROOT / "docs" / "benchmarks" / f"{name}.svg"
        path.write_text(plot.plot(bench), encoding="utf-8")


def main() -> int:
    stale = []
    if "--check" not in sys.argv:
        draw()
    for name, fresh in generated():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == fresh:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(fresh, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"Stale: {', '.join(stale)}. Run: python scripts/docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
