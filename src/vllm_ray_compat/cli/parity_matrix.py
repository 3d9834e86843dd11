"""``vllm-ray-compat parity matrix``: the runs that make sense, for a CI (argparse, as ``status``).

So the job that prints it needs the core of this package alone, and no vLLM.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from vllm_ray_compat.errors import EXIT_HOLDS
from vllm_ray_compat.parity import matrix
from vllm_ray_compat.schedule import RELEASES

ABOUT = "Print which parity runs make sense: releases x topologies x pairs of executors."


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="vllm-ray-compat parity matrix",
        description=f"{ABOUT} From the phase table and who provides which executor where.",
        allow_abbrev=False,
    )
    made.add_argument(
        "--format",
        choices=("github", "json"),
        default="json",
        help="json: one object, for reading. github: one line for $GITHUB_OUTPUT and fromJSON()",
    )
    made.add_argument(
        "--release",
        nargs="+",
        action="extend",
        metavar="RELEASE",
        help=f"vLLM releases; repeatable. Default: all of the phase table, {RELEASES[0]} to "
        f"{RELEASES[-1]}",
    )
    made.add_argument(
        "--topology",
        nargs="+",
        action="extend",
        metavar="TOPOLOGY",
        help=f"tpN, ppN or tpNppN; repeatable. Default: {' '.join(matrix.TOPOLOGIES)}",
    )
    made.add_argument("--shard", default="1/1", metavar="I/N", help="part I of N of the matrix")
    made.add_argument(
        "--python",
        default=matrix.PYTHON,
        metavar="3.N",
        help=f"the Python of every run. Default: {matrix.PYTHON}, which the locks are for",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
        UsageError: a release, topology or shard that is none, or more jobs than GitHub takes.
    """
    arguments = parser().parse_args(argv)
    part, parts = matrix.parse_shard(arguments.shard)
    built = matrix.build(
        arguments.release or RELEASES,
        arguments.topology or matrix.TOPOLOGIES,
        arguments.python,
    )
    cells = matrix.shard(built.cells, part, parts)
    include = [cell.to_dict() for cell in cells]
    if arguments.format == "github":
        matrix.check_github_limit(cells)
        for reason in built.left_out:
            sys.stderr.write(f"Left out: {reason}.\n")
        text = json.dumps({"include": include}, separators=(",", ":"))
    else:
        text = json.dumps(
            {
                "schema": matrix.SCHEMA,
                "shard": f"{part}/{parts}",
                "total": len(built.cells),
                "left_out": list(built.left_out),
                "include": include,
            },
            indent=2,
        )
    sys.stdout.write(text + "\n")
    return EXIT_HOLDS
