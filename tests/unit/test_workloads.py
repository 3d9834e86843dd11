from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import tiny_model
from vllm_ray_compat.parity.workloads import (
    SuiteError,
    Unavailable,
    load_suite,
    parse_suite,
    suite_names,
)


def test_smoke_covers_what_the_first_version_promises() -> None:
    suite = load_suite("smoke")
    assert [w.name for w in suite.workloads] == [
        "greedy",
        "logprobs",
        "seeded",
        "mixed-lengths",
        "stop",
    ]
    requests = {w.name: w.requests for w in suite.workloads}
    assert all(r.sampling["temperature"] == 0 for r in requests["greedy"])
    assert any("prompt_logprobs" in r.sampling for r in requests["logprobs"])
    assert all("seed" in r.sampling for r in requests["seeded"])
    assert any("stop" in r.sampling for r in requests["stop"])
    assert suite.engine["enable_chunked_prefill"] is True


def test_mixed_lengths_needs_several_chunks_and_fits_the_tiny_model(tmp_path) -> None:
    from tokenizers import Tokenizer

    suite = load_suite("smoke")
    tiny_model.write_tiny_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    chunk = suite.engine["max_num_batched_tokens"]
    lengths = []
    for workload in suite.workloads:
        for request in workload.requests:
            length = len(tokenizer.encode(request.prompt.render()).ids)
            assert length + request.sampling["max_tokens"] <= suite.engine["max_model_len"]
            if workload.name == "mixed-lengths":
                lengths.append(length)
    assert min(lengths) < 8
    assert max(lengths) > 4 * chunk


def test_every_suite_that_ships_can_be_loaded() -> None:
    for name in suite_names():
        assert load_suite(name).name == name


def test_unknown_suite() -> None:
    with pytest.raises(UsageError, match=r"Unknown suite 'smoek'. Did you mean 'smoke'\?"):
        load_suite("smoek")


def _suite(**changes: object) -> str:
    request = {"id": "a", "prompt": {"text": "x"}, "sampling": {}}
    suite = {
        "schema": "vllm_ray_compat.suite/1",
        "name": "s",
        "workloads": [{"name": "w", "about": "", "requests": [request]}],
    }
    return json.dumps({**suite, **changes})


def _prompt(**prompt: Any) -> str:
    requests = [{"id": "a", "prompt": prompt}]
    return _suite(workloads=[{"name": "w", "about": "", "requests": requests}])


def test_embeddings_are_the_same_numbers_everywhere() -> None:
    prompt = parse_suite(_prompt(embeddings={"tokens": 2, "seed": 7}), "f").workloads[0].requests[0]
    rows = prompt.prompt.render().rows(3)
    assert rows == [
        [-0.35233447033367526, -0.6983016521509962, 0.3018689460797075],
        [-0.8551274266649145, 0.0717640086133784, -0.2686221661748289],
    ]


def _with_images(*images: object) -> str:
    return _prompt(text="x", images=images)


def test_a_suite_as_a_user_writes_it() -> None:
    assert parse_suite(_suite(), "f.json").workloads[0].requests[0].prompt.render() == "x"


@pytest.mark.parametrize(
    ("unavailable", "fault"),
    [
        ({"why": "x", "source": "y"}, "unavailable.0: .*Name a platform .on., a backend, or both"),
        ({"backend": "v3", "why": "x", "source": "y"}, "unavailable.0.backend: Input should be"),
        ({"on": "cpu", "vllm": "0.32", "why": "x", "source": "y"}, "is no version specifier"),
        ({"on": "cpu", "why": "x", "source": ""}, "unavailable.0.source: String should have at"),
    ],
)
def test_a_bad_word_on_what_cannot_run_it_says_where(unavailable: dict, fault: str) -> None:
    request = {"id": "a", "prompt": {"text": ""}}
    workload = {"name": "w", "about": "", "requests": [request], "unavailable": [unavailable]}
    with pytest.raises(SuiteError, match=fault):
        parse_suite(_suite(workloads=[workload]), "f.json")


@pytest.mark.parametrize(
    ("declared", "holds"),
    [
        ({"on": "cpu"}, {"legacy cpu", "v2 cpu"}),
        ({"backend": "legacy"}, {"legacy cpu", "legacy cuda"}),
        ({"backend": "legacy", "on": "cpu"}, {"legacy cpu"}),
        ({"backend": "legacy", "vllm": ">=0.33"}, set()),
        ({"on": "cpu", "vllm": "<0.33"}, {"legacy cpu", "v2 cpu"}),
    ],
)
def test_where_a_workload_cannot_run(declared: dict, holds: set[str]) -> None:
    one = Unavailable(why="x", source="y", **declared)
    sides = [(b, p) for b in ("legacy", "v2") for p in ("cpu", "cuda")]
    assert {f"{b} {p}" for b, p in sides if one.applies(b, p, "0.32.0+cpu")} == holds


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{\n  oops", "f.json:2:3: "),
        (_suite(schema="vllm_ray_compat.suite/9"), "this version reads 'vllm_ray_compat.suite/1'"),
        (_suite(nmae="x"), "nmae: Extra inputs are not permitted"),
        (_suite(workloads=[]), "workloads: Tuple should have at least 1 item"),
        ("[]", "f.json is not a suite"),
        (
            _suite(
                workloads=[
                    {"name": "w", "about": "", "requests": [{"id": "a", "prompt": {"txet": "x"}}]}
                ]
            ),
            "workloads.0.requests.0.prompt.txet: Extra inputs",
        ),
        (_prompt(text="x", embeddings={"tokens": 2}), "a prompt is one of text, token_ids, mess"),
        (_prompt(embeddings={"tokens": 0}), "requests.0.prompt.embeddings.tokens: "),
        (_prompt(embeddings={"tokens": 2}, times=3), "times repeats a text or token ids; embeddi"),
        (
            _prompt(embeddings={"tokens": 2}, images=[{"seed": 1}]),
            "images go with a text, token ids or messages, not with embeddings",
        ),
        (_prompt(messages=[{"role": "user"}], times=3), "times repeats a text or token ids; mess"),
        (
            _with_images({"size": [0, 8], "seed": 1}),
            "workloads.0.requests.0.prompt.images.0.size.0: Input should be greater than or equal",
        ),
        (
            _with_images({"seed": 1}, {"size": [8, 5000], "seed": 1}),
            "workloads.0.requests.0.prompt.images.1.size.1: Input should be less than or equal",
        ),
        (_with_images({"size": [8, 8]}), "prompt.images.0.seed: Field required"),
        (_with_images({"seed": -1}), "prompt.images.0.seed: Input should be greater than or equal"),
        (_with_images({"seed": 1, "file": "cat.png"}), "prompt.images.0.file: Extra inputs"),
        (
            _suite(
                workloads=[
                    {
                        "name": "w",
                        "about": "",
                        "requests": [{"id": "a", "prompt": {"text": ""}}] * 2,
                    }
                ]
            ),
            "request ids must be unique",
        ),
        (
            _suite(
                workloads=[
                    {"name": "w", "about": "", "requests": [{"id": "a", "prompt": {"text": ""}}]}
                ]
                * 2
            ),
            "workload names must be unique",
        ),
    ],
)
def test_a_suite_that_cannot_be_used_says_where(text: str, fault: str) -> None:
    with pytest.raises(SuiteError) as caught:
        parse_suite(text, "f.json")
    assert fault in str(caught.value)
