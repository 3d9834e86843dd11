"""``vllm-ray-compat status``: the decision, its reasons, what changes next.

Parsed by argparse, not by typer as the other commands: typer imports pydantic, and that alone
takes longer than the whole command may (150 ms). So ``status`` also runs where only the core of
this package is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm_ray_compat.errors import EXIT_DIFFERENCE, EXIT_HOLDS, unknown
from vllm_ray_compat.executors import catalog, rank_order
from vllm_ray_compat.flag import Flag, parse_flag, read_flag
from vllm_ray_compat.schedule import Phase
from vllm_ray_compat.selector import PROVIDER_COMPAT, Decision, rehearse, select
from vllm_ray_compat.settings import read_settings

ABOUT = 'Say which executor serves distributed_executor_backend="ray" here, and why.'


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="vllm-ray-compat status",
        description=ABOUT,
        epilog="Exits 0; 1 when RAYCOMPAT_STRICT=1 makes a warning an error, the executor is not "
        "there, or VLLM_RAY_BUNDLE_INDICES is no list of bundles; 2 for wrong usage or an invalid "
        "flag; 3 without vLLM.",
        allow_abbrev=False,
    )
    made.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    made.add_argument("--as-of-vllm", metavar="RELEASE", help="rehearse another vLLM release")
    made.add_argument("--flag", metavar="0|1|unset", help="rehearse another value of the flag")
    made.add_argument("--phase", metavar="0|1|2|3", help="rehearse the policy of another phase")
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        RaycompatError: with the exit code of its kind.
    """
    arguments = parser().parse_args(argv)
    decision = decide(arguments.as_of_vllm, arguments.flag, arguments.phase)
    present = catalog.is_present(decision)
    placement = placement_of(decision)
    if arguments.json:
        shown = {**decision.to_dict(), "executor_present": present, "placement": placement}
        text = json.dumps(shown, indent=2)
    else:
        text = render(decision, present)
    sys.stdout.write(text + "\n")
    failed = (
        not present
        or (decision.strict and bool(decision.warnings))
        or bool(placement["bundle_indices"] and placement["bundle_indices"]["error"])
    )
    return EXIT_DIFFERENCE if failed else EXIT_HOLDS


def decide(as_of_vllm: str | None, flag: str | None, phase: str | None) -> Decision:
    """Make the decision with what the options replace."""
    settings = read_settings()
    if phase is not None:
        phases = [str(int(p)) for p in Phase]
        if phase not in phases:
            raise unknown("phase", phase, phases)
        settings = rehearse(settings, int(phase), f"--phase {phase}")
    decision = select(as_of_vllm, flag=_flag(flag), settings=settings)
    if as_of_vllm is not None and settings.phase is None:
        decision = replace(decision, policy=f"--as-of-vllm {as_of_vllm}")
    return decision


def _flag(text: str | None) -> Flag:
    if text is None:
        return read_flag()
    return Flag(source="--flag") if text == "unset" else parse_flag(text, "--flag")


def placement_of(decision: Decision) -> dict[str, Any]:
    """Return :func:`rank_order.describe` for the executor that was chosen."""
    whole_groups = decision.provider == PROVIDER_COMPAT or any(
        repair.name == rank_order.WHOLE_GROUPS for repair in decision.repairs
    )
    return rank_order.describe(decision.backend, whole_groups=whole_groups)


def _placement_rows(placement: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    indices, other = placement["bundle_indices"], placement["other_backend"]
    yield "rank order", placement["rule"]
    if indices is None:
        return
    if other is not None:
        yield "note", f"The {other['backend']} executor has another order: {other['rule']}."
    if indices["error"]:
        yield "ERROR", indices["error"]
    else:
        yield "bundles", f"{', '.join(map(str, indices['value']))}, from {rank_order.INDICES_NAME}"


def render(decision: Decision, present: bool) -> str:
    """Return the text form of a decision."""
    change = decision.next_change
    rows: list[tuple[str, Any]] = [
        ("vLLM", decision.vllm),
        ("phase", f"{int(decision.phase)}, from {decision.policy}"),
        ("flag", decision.flag),
        ("backend", decision.backend.value),
        ("executor", f"{decision.executor} (provider {decision.provider})"),
        *([("loaded", f"{decision.loaded}, a subclass of it")] if decision.repairs else []),
        *(
            (
                "refuses" if r.refuses else "repaired",
                f"{r.name} (vLLM {r.releases()}): {r.symptom} {r.effect}",
            )
            for r in decision.repairs
        ),
        *_placement_rows(placement_of(decision)),
        *(("because", reason) for reason in decision.reasons),
        *(("note", note) for note in decision.notes),
        *(
            ("ERROR" if decision.strict else "WARNING", f"{type(w).__name__}: {w}")
            for w in decision.warnings
        ),
        *([] if present else [("ERROR", catalog.missing_text(decision))]),
        (
            "next change",
            f"{change['release']}: {change['what']}" if change else "none is known",
        ),
    ]
    return "\n".join(f"{name + ':':<13}{value}" for name, value in rows)
