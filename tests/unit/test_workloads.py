from __future__ import annotations

import json

import pytest

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity import tiny_model
from vllm_ray_compat.parity.workloads import SuiteError, load_suite, parse_suite, suite_names


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


def _with_images(*images: object) -> str:
    prompt = {"text": "x", "images": images}
    workload = {"name": "w", "about": "", "requests": [{"id": "a", "prompt": prompt}]}
    return _suite(workloads=[workload])


def test_a_suite_as_a_user_writes_it() -> None:
    assert parse_suite(_suite(), "f.json").workloads[0].requests[0].prompt.render() == "x"


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
