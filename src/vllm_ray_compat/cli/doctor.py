"""``vllm-ray-compat doctor``: what is wrong with this machine, cluster, configuration or log."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from vllm_ray_compat.errors import UsageError


def doctor(
    log: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A log to look through; - is standard input."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as one JSON object.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The Ray cluster. Default: RAY_ADDRESS, or the one that runs on this machine.",
        ),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="Tensor parallel size of the engine in question.")
    ] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline parallel size of it.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHECK|GROUP",
            help="A check by its name, or configuration, machine, cluster or log; repeatable. "
            "Default: all that can be made.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that looking at the Ray cluster may take.")
    ] = 30.0,
) -> None:
    """Check this machine, the Ray cluster and the configuration, and look through a log.

    Starts no Ray and no engine. Exits 0 when no problem was found, 1 when there is one, 2 for wrong
    usage, 3 when the cluster asked for, or nothing of what was asked for, can be looked at.
    """
    from vllm_ray_compat.doctor.context import Options
    from vllm_ray_compat.doctor.examine import examine
    from vllm_ray_compat.doctor.findings import Group
    from vllm_ray_compat.doctor.registry import chosen
    from vllm_ray_compat.doctor.text import print_examination

    checks = chosen(only or ())
    if log is None and only and all(check.group is Group.LOG for check in checks):
        raise UsageError("The checks of a log need one: name it with --log FILE.")
    if log is not None and all(check.group is not Group.LOG for check in checks):
        raise UsageError("--log is given, but --only leaves the check of a log out: add it.")
    with _opened(log) as stream:
        options = Options(
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            ray_address=address,
            timeout_s=timeout,
            log=stream,
        )
        found = examine(options, os.environ, checks)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        from vllm_ray_compat.cli.parity_run import result_console

        print_examination(found, result_console())
    raise typer.Exit(found.exit_code)


@contextlib.contextmanager
def _opened(log: str | None) -> Iterator[tuple[BinaryIO, str] | None]:
    """Open the log before anything is checked.

    Raises:
        UsageError: it cannot be read.
    """
    if log is None:
        yield None
    elif log == "-":
        yield sys.stdin.buffer, "standard input"
    else:
        try:
            opened = Path(log).open("rb")  # noqa: SIM115 (closed below; its errors are told here)
        except OSError as error:
            raise UsageError(f"The log {log} cannot be read: {error.strerror}.") from error
        with opened:
            yield opened, log
