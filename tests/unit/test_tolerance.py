from __future__ import annotations

import pytest

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.tolerance import (
    Declared,
    Tolerance,
    Tolerances,
    auto_tolerances,
    parse_tolerances,
)
from vllm_ray_compat.parity.workloads import SuiteError, parse_suite, tolerances_of


def test_a_tolerance_from_the_command_line() -> None:
    declared, auto = parse_tolerances(["logprobs=1e-4,0.01", "cumulative_logprob=2"])
    assert not auto
    assert [(d.field, d.tolerance.absolute, d.tolerance.relative) for d in declared] == [
        ("logprobs", 1e-4, 0.01),
        ("cumulative_logprob", 2.0, 0.0),
    ]
    assert parse_tolerances(["auto"]) == ([], True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("logprobs", "neither 'auto' nor FIELD=ABS"),
        ("logprob=1", "Did you mean 'logprobs'"),
        ("token_ids=1", "Unknown field with a tolerance 'token_ids'"),
        ("text=1", "Known: logprobs, cumulative_logprob, prompt_logprobs"),
        ("logprobs=", "one or two numbers from 0 up"),
        ("logprobs=-1", "one or two numbers"),
        ("logprobs=nan", "one or two numbers"),
        ("logprobs=1,2,3", "one or two numbers"),
        ("logprobs=inf", "one or two numbers"),
    ],
)
def test_a_bad_tolerance(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_tolerances([text])


def test_who_comes_first() -> None:
    def of(workload: str | None, absolute: float, source: str) -> Declared:
        tolerance = Tolerance(absolute=absolute)
        return Declared(workload=workload, field="logprobs", tolerance=tolerance, source=source)

    everything = [
        of(None, 4, "command line"),
        of("w", 3, "workload"),
        of(None, 2, "suite"),
        of(None, 1, "auto (float32)"),
    ]
    assert Tolerances(everything).of("w")["logprobs"].absolute == 4
    assert Tolerances(everything[1:]).of("w")["logprobs"].absolute == 3
    assert Tolerances(everything[1:]).of("x")["logprobs"].absolute == 2
    assert Tolerances(everything[3:]).of("x")["logprobs"].absolute == 1
    assert Tolerances().of("x") == {}


def test_defaults_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    from torch.testing import _comparison

    for name in ("float16", "bfloat16", "float32"):
        relative, absolute = _comparison.default_tolerances(getattr(torch, name))
        for declared in auto_tolerances([name]):
            assert (declared.tolerance.absolute, declared.tolerance.relative) == (
                absolute,
                relative,
            )
            assert declared.tolerance.per_token == (declared.field == "cumulative_logprob")


def test_of_two_dtypes_the_looser() -> None:
    (logprobs, *_) = auto_tolerances(["float32", "bfloat16"])
    assert logprobs.tolerance.relative == 1.6e-2
    assert logprobs.source == "auto (float32 and bfloat16)"


@pytest.mark.parametrize("dtype", [None, "float64", "float8_e4m3fn"])
def test_no_default(dtype: str | None) -> None:
    with pytest.raises(UsageError, match="has no default for dtype"):
        auto_tolerances(["float32", dtype])


SUITE = """{"schema": "vllm_ray_compat.suite/1", "name": "s",
 "tolerances": {"logprobs": {"absolute": 0.1}},
 "workloads": [{"name": "w", "about": "a", "tolerances": {%s},
   "requests": [{"id": "r", "prompt": {"text": "x"}}]}]}"""


def test_a_suite_declares() -> None:
    suite = parse_suite(SUITE % '"prompt_logprobs": {"relative": 0.5}', "s.json")
    assert [(d.workload, d.field, d.source) for d in tolerances_of(suite)] == [
        (None, "logprobs", "suite"),
        ("w", "prompt_logprobs", "workload"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '"token_ids": {"absolute": 1}',
            r"workloads.0.tolerances: .*'token_ids' takes no tolerance",
        ),
        ('"logprobs": {"absolut": 1}', "workloads.0.tolerances.logprobs.absolut"),
        ('"logprobs": {"absolute": -1}', "greater than or equal to 0"),
    ],
)
def test_a_suite_with_a_bad_tolerance(text: str, words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        parse_suite(SUITE % text, "s.json")
