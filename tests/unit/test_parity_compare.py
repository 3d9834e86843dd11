"""``parity compare``, as a user runs it: verdicts, exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vllm_ray_compat.cli.app import app
from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import capture as cap
from vllm_ray_compat.parity.cross import compare_captures
from vllm_ray_compat.parity.faults import inject, write_capture
from vllm_ray_compat.parity.folder import MARKER
from vllm_ray_compat.parity.synthetic import synthetic_capture

from .test_cli import cli, refused


def made(backend: str = "legacy", role: str = "reference", **engine: Any) -> cap.Capture:
    one = synthetic_capture()
    one.header.backend, one.header.role = backend, role
    assert one.engine is not None
    for name, value in engine.items():
        setattr(one.engine, name, value)
    return one


@pytest.fixture
def a(tmp_path: Path) -> Path:
    write_capture(made(vllm="0.19.1", torch="2.10.0"), tmp_path / "a.jsonl")
    return tmp_path / "a.jsonl"


def b(a: Path, kind: str | None = None, name: str = "b.jsonl", **engine: Any) -> Path:
    one = made("v2", "candidate", **engine)
    if kind is not None:
        one, _ = inject(one, kind, Random(0))
    write_capture(one, a.with_name(name))
    return a.with_name(name)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["parity", "compare", *map(str, arguments)])


def report(*arguments: str | Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return made


def test_equal_captures_of_two_releases_pass_and_what_differs_is_told(a: Path) -> None:
    other = b(a, vllm="0.33.0", torch="2.13.0", dtype="bfloat16")
    done = run(a, other)
    assert done.exit_code == 0, done.output
    assert "Verdict: PASS vLLM 0.19.1 and 0.33.0" in done.stdout
    for words in ("vllm (0.19.1 and 0.33.0)", "torch (2.10.0 and 2.13.0)", "bfloat16)"):
        assert words in done.stdout
    found = report(a, other)
    assert {d["name"] for d in found["engine_differences"]} == {"vllm", "torch", "dtype"}
    assert [arm["role"] for arm in found["arms"]] == ["reference", "candidate"]
    assert {c["result"] for c in found["comparisons"]} == {"equal"}
    statistics = found["topologies"][0]["statistics"]
    assert (statistics["alpha"], statistics["requests"], statistics["noise_runs"]) == (0.05, 18, 1)
    assert "no noise floor was measured" in done.stdout


def test_a_difference_exits_1_and_is_placed(a: Path) -> None:
    done = run(a, b(a, "token"))
    assert done.exit_code == 1
    assert "token_ids at position" in done.stdout
    assert "Verdict: FAIL" in done.stdout


def test_a_tolerance_is_shown(a: Path) -> None:
    other = b(a, "logprob", vllm="0.19.1", torch="2.10.0")
    assert run(a, other).exit_code == 1
    done = run(a, other, "--tolerance", "logprobs=0.01")
    assert done.exit_code == 0, done.output
    assert "Tolerance of logprobs in all workloads: 0.01 absolute" in done.stdout
    assert "1 of 18 within tolerance" in done.stdout
    assert "within tolerance, not equal" in done.stdout
    found = report(a, other, "--tolerance", "logprobs=0.01")
    assert found["topologies"][0]["within_tolerance"] == 1
    (tolerated,) = [c for c in found["comparisons"] if c["result"] == "within-tolerance"]
    assert tolerated["first_divergence"]["difference"] == pytest.approx(1e-3)


def test_auto_is_of_the_dtype_and_never_of_tokens(a: Path) -> None:
    # A thousandth is too much for float32, and not for half precision.
    exact = b(a, "logprob")
    assert run(a, exact, "--tolerance", "auto").exit_code == 1
    write_capture(made(dtype="bfloat16"), a)
    half = b(a, "logprob", dtype="bfloat16")
    done = run(a, half, "--tolerance", "auto")
    assert "declared by auto (bfloat16)" in done.stdout
    assert run(a, b(a, "token", dtype="bfloat16"), "--tolerance", "auto").exit_code == 1


def test_the_noise_floor_may_come_from_several_runs(a: Path) -> None:
    runs = []
    for number in range(3):
        write_capture(made(role="reference-again"), a.with_name(f"again-{number}.jsonl"))
        runs += ["--again", a.with_name(f"again-{number}.jsonl")]
    found = report(a, b(a), *runs)
    assert found["noise_floor"][0]["runs"] == 4
    assert found["topologies"][0]["statistics"]["noise_requests"] == 3 * 18
    noisy, _ = inject(made(), "text")
    write_capture(noisy, a.with_name("again-1.jsonl"))
    found = report(a, b(a), *runs)
    assert found["verdict"] == "inconclusive"
    assert found["topologies"][0]["statistics"]["p_value"] is not None


def test_another_backend_is_no_noise(a: Path) -> None:
    done = run(a, b(a), "--again", b(a, name="again.jsonl"))
    assert isinstance(done.exception, UsageError)
    assert "says nothing about the noise of legacy" in str(done.exception)


def _folder(path: Path, *captures: cap.Capture) -> Path:
    path.mkdir()
    (path / MARKER).touch()
    for one in captures:
        name = f"{one.header.topology}-{one.header.role}-{one.header.backend}.jsonl"
        write_capture(one, path / name)
    return path


def _on(topology: str, one: cap.Capture) -> cap.Capture:
    one.header.topology = topology
    return one


def test_folders_are_compared_topology_by_topology(tmp_path: Path) -> None:
    roles = [("legacy", "reference"), ("legacy", "reference-again"), ("mp", "candidate")]
    left = _folder(tmp_path / "a", *(_on(t, made(*r)) for t in ("tp2", "pp2") for r in roles))
    bad, _ = inject(made("v2"), "token")
    right = _folder(tmp_path / "b", _on("tp2", made("v2")), _on("pp2", bad))
    found = report(left, right)
    assert {t["topology"]: t["verdict"] for t in found["topologies"]} == {
        "tp2": "pass",
        "pp2": "fail",
    }
    assert [(t["reference"], t["candidate"]) for t in found["topologies"]] == [("legacy", "v2")] * 2
    assert [floor["runs"] for floor in found["noise_floor"]] == [2, 2]


def test_a_topology_that_one_folder_lacks_is_not_passed_over(tmp_path: Path) -> None:
    left = _folder(tmp_path / "a", _on("tp2", made()), _on("pp2", made()))
    right = _folder(tmp_path / "b", _on("tp2", made("v2")))
    found = report(left, right)
    assert {t["topology"]: t["verdict"] for t in found["topologies"]} == {
        "tp2": "pass",
        "pp2": "inconclusive",
    }
    assert found["verdict"] == "inconclusive"


NOT_RUN = cap.NotRun(
    workload="logprobs", requests=4, backend="legacy", why="it has no graph", source="vllm#1"
)


def _without(workload: str, one: cap.Capture) -> cap.Capture:
    one.results = [r for r in one.results if r.workload.partition("@")[0] != workload]
    return one


def test_what_one_of_two_captures_left_out_as_declared_is_not_lost(a: Path) -> None:
    left = _without("logprobs", made())
    write_capture(left, a)
    assert run(a, b(a)).exit_code == 1
    left.header.not_run = [NOT_RUN]
    write_capture(left, a)
    for order in ((a, b(a)), (b(a), a)):
        found = report(*order)
        assert found["verdict"] == "pass"
        assert [(n["workload"], n["backend"]) for n in found["not_run"]] == [("logprobs", "legacy")]
        (verdict,) = found["topologies"]
        assert verdict["not_run"] == ["logprobs"]
        assert verdict["requests"] == len(left.results)
        assert "logprobs" not in {c["workload"] for c in found["comparisons"]}
        (known,) = found["known_differences"]
        assert known["effect"] == "workload logprobs was not run"
    assert "Known difference: legacy cannot run workload logprobs" in run(a, b(a)).stdout
    # Of one that is not declared it is still missing.
    write_capture(_without("greedy", left), a)
    assert run(a, b(a)).exit_code == 1


def test_a_profile_that_one_folder_lacks_counts_unless_it_was_left_out(tmp_path: Path) -> None:
    def of_profile(one: cap.Capture) -> cap.Capture:
        one.header.profile = "own"
        return one

    legacy = _on("tp2", _without("logprobs", made()))
    v2 = [_on("tp2", _without("logprobs", made("v2"))), _on("tp2", of_profile(made("v2")))]
    v2[1].results = [r for r in v2[1].results if r.workload == "logprobs"]
    right = _folder(tmp_path / "b", v2[0])
    write_capture(v2[1], right / "own.jsonl")
    found = report(_folder(tmp_path / "a", legacy), right)
    assert found["verdict"] == "inconclusive"
    assert found["topologies"][0]["not_compared"] == len(v2[1].results)
    assert "are of engine profiles that only one side has" in run(tmp_path / "a", right).stdout
    # One capture, named, is compared with the one that belongs to it.
    (file,) = (tmp_path / "a").glob("*.jsonl")
    assert report(file, right)["verdict"] == "pass"
    legacy.header.not_run = [NOT_RUN]
    found = report(_folder(tmp_path / "c", legacy), right)
    assert (found["verdict"], found["topologies"][0]["not_compared"]) == ("pass", 0)
    assert found["topologies"][0]["not_run"] == ["logprobs"]


def test_the_suite_beside_a_capture_counts(a: Path) -> None:
    suite = {
        "schema": "vllm_ray_compat.suite/1",
        "name": "synthetic",
        "known_differences": [
            {"backend": "v2", "field": "token_ids", "what": "rounds", "source": "here"},
            {"backend": "v2", "field": "error", "what": "refuses", "source": "there"},
        ],
        "workloads": [
            {"name": "w", "about": "x", "requests": [{"id": "r", "prompt": {"text": "x"}}]}
        ],
    }
    a.with_name("suite.json").write_text(json.dumps(suite))
    done = run(a, b(a, "token"))
    assert done.exit_code == 0, done.output
    assert "Known difference: v2 rounds; seen in 1 comparisons (here)." in done.stdout
    assert "Known difference: v2 refuses; not seen (there)." in done.stdout
    assert run(a, b(a, "text")).exit_code == 1


def test_a_report_is_written(a: Path, tmp_path: Path) -> None:
    done = run(a, b(a), "--report-dir", tmp_path / "out")
    assert done.exit_code == 0
    assert json.loads((tmp_path / "out" / "report.json").read_text())["verdict"] == "pass"


def test_captures_are_not_removed_for_their_own_report(tmp_path: Path) -> None:
    left, right = (
        _folder(tmp_path / n, _on("tp2", made(x))) for n, x in (("a", "legacy"), ("b", "v2"))
    )
    for target in (left, right):
        done = run(left, right, "--report-dir", target)
        assert isinstance(done.exception, UsageError)
        assert list(target.glob("*.jsonl"))


def test_partial(a: Path) -> None:
    cut = a.with_name("cut.jsonl")
    cut.write_bytes(b(a).read_bytes()[:30_000])
    done = run(a, cut, "--partial")
    assert done.exit_code == 1
    assert "Verdict: INCONCLUSIVE" in done.stdout
    assert "an arm did not get to its end" in done.stdout
    crashed = made("v2")
    crashed.end = None
    crashed.failure = cap.Failure(reason="workload", message="boom")
    write_capture(crashed, cut)
    assert report(a, cut, "--partial")["verdict"] == "inconclusive"
    with pytest.raises(UsageError, match=r"cut\.jsonl:21: .*\(workload: boom\); expected an 'end'"):
        compare_captures(a, cut)


@pytest.fixture
def bad(a: Path) -> Path:
    """A folder with one of each bad capture."""
    good = a.read_bytes()
    folder = a.parent / "bad"
    folder.mkdir()
    lines = good.splitlines(keepends=True)
    contents = {
        "empty": b"",
        "binary": os.urandom(4096),
        "zeros": bytes(4096),
        "foreign": b'{"id": 1}\n',
        "cut": good[:30_000],
        "newer": good.replace(b"capture/2", b"capture/99", 1),
        "older": good.replace(b"capture/2", b"capture/1", 1),
        "twice": b"".join([*lines[:3], lines[2], *lines[3:]]),
        "damaged": b"".join([*lines[:4], b"oops\n", *lines[4:]]),
        "no-end": b"".join(lines[:-1]),
        "binary-inside": b"".join([*lines[:4], b"\xff\xfe\x00\n", *lines[4:]]),
    }
    for name, content in contents.items():
        (folder / f"{name}.jsonl").write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty", [":1:", "the file is empty; expected a header of 'vllm_ray_compat.capture/2'"]),
        ("binary", [":1:", "expected the header of a capture"]),
        ("zeros", [":1:", "expected the header of a capture"]),
        ("foreign", [":1:", "found something else"]),
        ("cut", [":10:", "the last line is cut short", "--partial"]),
        ("newer", [":1:", "vllm_ray_compat.capture/99", "newer vllm-ray-compat: update"]),
        ("older", [":1:", "older vllm-ray-compat: record it again"]),
        ("twice", [":4:", "a second result for workload greedy, request g0"]),
        ("damaged", [":5:", "not a record of vllm_ray_compat.capture/2"]),
        ("no-end", [":20:", "expected an 'end' record"]),
        ("binary-inside", [":5:", "not a record"]),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_bad_capture_exits_2_with_file_line_and_what_was_expected(
    a: Path, bad: Path, name: str, words: list[str], swapped: bool
) -> None:
    file = bad / f"{name}.jsonl"
    order = (file, a) if swapped else (a, file)
    with pytest.raises(UsageError) as caught:
        compare_captures(*order)
    for word in (file.name, *words):
        assert word in str(caught.value)


def test_in_the_terminal_it_is_one_paragraph(a: Path, bad: Path) -> None:
    refused(cli("parity", "compare", str(a), str(bad / "newer.jsonl")), 2, "newer.jsonl:1")
    refused(cli("parity", "compare", str(a), str(a), "--tolerance", "tokens=1"), 2, "Known:")


def test_folders_and_files_that_are_none(a: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "empty", "the folder holds no captures; expected a capture"),
        (tmp_path / "missing.jsonl", "No such file"),
        (Path("/dev/null"), "no regular file"),
        (tmp_path / ("x" * 300), "cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            compare_captures(a, path)


def test_captures_of_other_suites_or_topologies(a: Path, tmp_path: Path) -> None:
    write_capture(_on("tp4", made()), tmp_path / "tp4.jsonl")
    with pytest.raises(UsageError, match="reference is of topology 'tp2pp2', the candidate of"):
        compare_captures(a, tmp_path / "tp4.jsonl")
    left = _folder(tmp_path / "l", _on("tp2", made()), _on("pp2", made()))
    right = _folder(tmp_path / "r", _on("tp4", made("v2")), _on("pp4", made("v2")))
    with pytest.raises(UsageError, match="No two captures belong together"):
        compare_captures(left, right)
    shutil.rmtree(right)
    right = _folder(
        tmp_path / "r", made("v2", "reference-again"), _on("a", made("v2", "reference-again"))
    )
    with pytest.raises(UsageError, match="holds no capture of a candidate or reference arm"):
        compare_captures(left, right)
