"""The checks of configuration and machine, and the table of checks."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from vllm_ray_compat.doctor import configuration, log, machine, registry
from vllm_ray_compat.doctor.checks import Need, validate
from vllm_ray_compat.doctor.context import Context, Options
from vllm_ray_compat.doctor.findings import Finding, Group, Level
from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.names import FLAG_NAME


def levels(findings: Iterable[Finding]) -> list[str]:
    return [finding.level.value for finding in findings]


def context(options: Options | None = None, **environ: str) -> Context:
    return Context(options or Options(), environ)


def test_a_warning_without_a_way_out_is_refused() -> None:
    with pytest.raises(ValidationError, match="says what to do"):
        Finding(level=Level.WARNING, what="x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "flag"}, "flag is there twice"),
        ({"name": "machine"}, "cannot be a name"),
        ({"name": "Two words"}, "cannot be a name"),
        ({"asks": "Says something."}, "asks nothing"),
        ({"needs": frozenset({Need.LOG})}, "of a log"),
        ({"needs": frozenset({Need.CLUSTER})}, "of a cluster"),
        ({"group": Group.MACHINE}, "stand together"),
    ],
)
def test_a_mistake_in_the_table_is_refused(changes: dict, words: str) -> None:
    validate(registry.CHECKS)
    second = replace(registry.CHECKS[1], **changes)
    with pytest.raises(AssertionError, match=words):
        validate([registry.CHECKS[0], second, *registry.CHECKS[2:]])


def test_checks_are_chosen_by_name_or_group() -> None:
    assert registry.chosen([]) == registry.CHECKS
    assert [c.name for c in registry.chosen(["reach", "log"])] == ["reach", "known-lines"]
    assert {c.group for c in registry.chosen(["machine"])} == {Group.MACHINE}
    with pytest.raises(UsageError, match="Did you mean 'reach'"):
        registry.chosen(["reech"])


@pytest.mark.parametrize(
    ("value", "level", "words"),
    [
        (None, "ok", "unset"),
        ("1", "ok", "on"),
        (" 0 ", "ok", "=0: off"),
        ("true", "problem", "'true'"),
        ("", "problem", "An empty value"),
    ],
)
def test_flag(value: str | None, level: str, words: str) -> None:
    (found,) = configuration.flag(context(**({} if value is None else {FLAG_NAME: value})))
    assert found.level.value == level
    assert words in found.what


def test_settings() -> None:
    assert levels(configuration.settings(context(RAYCOMPAT_PHASE="2"))) == ["ok"]
    (found,) = configuration.settings(context(RAYCOMPAT_STRIKT="1"))
    assert (found.level, found.where) == (Level.WARNING, "RAYCOMPAT_STRIKT")
    assert "Did you mean 'RAYCOMPAT_STRICT'" in found.what
    (found,) = configuration.settings(context(RAYCOMPAT_PHASE="9"))
    assert found.level is Level.PROBLEM


def test_executor() -> None:
    (found,) = configuration.executor(context())
    assert "RayExecutorV2" in found.what
    assert found.details["decision"]["backend"] == "v2"
    found, warned = configuration.executor(context(**{FLAG_NAME: "0"}))
    assert found.details["decision"]["backend"] == "legacy"
    assert (warned.level, warned.where) == (Level.WARNING, FLAG_NAME)
    assert warned.details["category"] == "LegacyExecutorRemovedInVllm033Warning"
    strict = context(**{FLAG_NAME: "0", "RAYCOMPAT_STRICT": "1"})
    assert levels(configuration.executor(strict)) == ["ok", "problem"]
    assert levels(configuration.executor(context(RAYCOMPAT_STRIKT="1"))) == ["ok"], "told once"
    _, *notes = configuration.executor(context(RAYCOMPAT_DISABLE="1"))
    assert "does not route here" in notes[0].what


def test_known_defects_repaired_and_not() -> None:
    repaired, *rest = configuration.known_defects(context())
    assert "v2-start-up" in repaired.details["repaired"]
    assert {finding.level for finding in rest} == {Level.NOTE}
    without = context(RAYCOMPAT_REPAIRS="all,-v2-start-up")
    (left_out,) = [f for f in configuration.known_defects(without) if "repair" in f.details]
    assert (left_out.level, left_out.details["repair"]) == (Level.WARNING, "v2-start-up")
    assert "v2-start-up" in (left_out.do or "")
    off = list(configuration.known_defects(context(RAYCOMPAT_DISABLE="1")))
    assert "RAYCOMPAT_DISABLE" in (off[0].do or "")
    ignored = context(RAY_CGRAPH_get_timeout="900")
    (found,) = [f for f in configuration.known_defects(ignored) if f.level is Level.WARNING]
    assert found.where == "RAY_CGRAPH_get_timeout"
    assert "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS" in (found.do or "")


def test_a_check_whose_need_is_not_met_says_why() -> None:
    assert "'true'" in str(context(**{FLAG_NAME: "true"}).missing(Need.DECISION))
    assert context().missing(Need.DECISION) is None
    assert context().missing(Need.LOG) == "no --log FILE was given"


@pytest.mark.parametrize(
    ("text", "sizes", "expected", "words"),
    [
        ("", (2, None), ["ok"], "is not set"),
        ("1,0", (2, 1), ["ok", "note"], "for each of 2 ranks"),
        ("0,1,2,3", (2, 2), ["ok", "note"], "for each of 4 ranks"),
        (" 0 , 1 ", (None, 2), ["ok", "note"], "for each of 2 ranks"),
        ("0,1", (None, None), ["note", "note"], "was not asked"),
        ("0,1", (4, None), ["problem", "note"], "names 2 bundles, and there are 4 ranks"),
        ("0,0", (2, None), ["problem", "note"], "bundle 0 more than once"),
        ("0,0", (4, None), ["problem", "problem", "note"], "bundle 0 more than once"),
        ("0,x", (2, None), ["problem"], "'x'"),
    ],
)
def test_bundle_indices(
    text: str, sizes: tuple[int | None, int | None], expected: list[str], words: str
) -> None:
    made = context(Options(*sizes), VLLM_RAY_BUNDLE_INDICES=text)
    found = list(configuration.bundle_indices(made))
    assert levels(found) == expected
    assert words in found[0].what


def test_the_two_orders_are_told() -> None:
    made = context(VLLM_RAY_BUNDLE_INDICES="1,0", **{FLAG_NAME: "0"})
    *_, told = configuration.bundle_indices(made)
    assert told.details["rank_order"] == {"v2": "as_listed", "legacy": "listed_then_sorted"}
    assert "Here it is legacy" in told.what


def test_host_ip() -> None:
    assert levels(configuration.host_ip(context())) == ["ok"]
    assert levels(configuration.host_ip(context(VLLM_HOST_IP="127.0.0.1"))) == ["ok"]
    (found,) = configuration.host_ip(context(VLLM_HOST_IP="203.0.113.7"))
    assert (found.level, found.where) == (Level.PROBLEM, "VLLM_HOST_IP")
    assert "is no address of this machine" in found.what
    (found,) = configuration.host_ip(context(VLLM_HOST_IP="300.1"))
    assert "no name that leads to one" in found.what


@pytest.mark.parametrize(
    ("total", "free", "ranks", "level"),
    [
        (64, 64, 1, "warning"),  # docker's default
        (64, 40, 1, "problem"),
        (1024, 300, 2, "warning"),
        (1024, 1024, 2, "ok"),
        (1024, 1024, 8, "warning"),
        (8192, 100, 8, "warning"),
    ],
)
def test_shared_memory(total: int, free: int, ranks: int, level: str) -> None:
    found = machine.judge_shared_memory(total, free, ranks)
    assert found.level.value == level
    assert found.details == {
        "total_mib": total,
        "free_mib": free,
        "queues_mib": 240 * (ranks + 1),
    }


def test_shared_memory_of_this_machine() -> None:
    (found,) = machine.shared_memory(context(VLLM_MQ_MAX_CHUNK_BYTES_MB="1"))
    assert found.details["queues_mib"] == 250
    assert found.details["total_mib"] > 0


@pytest.mark.parametrize(
    ("soft", "hard", "level"),
    [
        (1024, 1048576, "ok"),  # Ray raises it
        (1024, resource.RLIM_INFINITY, "ok"),
        (4096, 4096, "warning"),
        (256, 1000, "problem"),
    ],
)
def test_open_files(soft: int, hard: int, level: str) -> None:
    assert machine.judge_open_files(soft, hard).level.value == level


def test_leftovers_are_what_nobody_maps(tmp_path: Path) -> None:
    """A real segment in /dev/shm, mapped by another process, and then not."""
    name = f"psm_doctor_{os.getpid()}"
    script = (
        "import mmap, os, sys\n"
        f"file = os.open('/dev/shm/{name}', os.O_RDWR | os.O_CREAT)\n"
        "os.write(file, b'x' * (1 << 20)); held = mmap.mmap(file, 1 << 20); os.close(file)\n"
        "print('mapped', flush=True); sys.stdin.read()"
    )
    path = Path("/dev/shm") / name
    try:
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdin is not None
            assert holder.stdout.readline() == b"mapped\n"
            assert machine.unused_segments(path.parent, (name,)) == ([], 0)
            holder.stdin.close()
        ((found, size),) = machine.unused_segments(path.parent, (name,))[0]
        assert (found, size) == (str(path), 1 << 20)
    finally:
        path.unlink(missing_ok=True)
    assert machine.unused_segments(path.parent, (name,)) == ([], 0)


def test_leftovers_are_judged_by_their_size() -> None:
    assert levels(machine.judge_leftovers([], 0)) == ["ok"]
    (found,) = machine.judge_leftovers([("/dev/shm/psm_a", 1 << 20)], 0)
    assert (found.level, found.details["mib"]) == (Level.NOTE, 1)
    (found,) = machine.judge_leftovers([(f"/dev/shm/psm_{i}", 100 << 20) for i in range(4)], 3)
    assert found.level is Level.WARNING
    assert "3 processes could not be looked at" in found.what
    assert (found.do or "").endswith("/dev/shm/psm_2, …")


@pytest.mark.parametrize(
    ("text", "cores", "ranks", "level"),
    [
        (None, 2, 2, "note"),
        ("0", 2, 2, "ok"),
        ("-5", 2, 2, "ok"),
        (None, 64, 8, "ok"),
        ("many", 4, 4, "note"),
    ],
)
def test_niceness(text: str | None, cores: int, ranks: int, level: str) -> None:
    assert machine.judge_niceness(text, cores, ranks, "here").level.value == level


def test_a_log() -> None:
    text = b"fine\n" + b"RuntimeError: x y z RayChannelTimeoutError\n" * 2
    (found,) = log.known_lines(context(Options(log=(io.BytesIO(text), "engine.log"))))
    assert (found.level, found.where) == (Level.PROBLEM, "engine.log, line 2")
    assert found.details["count"] == 2
    assert "2 times" in found.what
    (found,) = log.known_lines(context(Options(log=(io.BytesIO(b"fine\n"), "a"))))
    assert (found.level, found.details) == (Level.OK, {"lines": 1})
