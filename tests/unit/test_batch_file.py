"""A team's own traffic: the batch file that ``vllm run-batch`` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_ray_compat.parity.workloads import SuiteError
from vllm_ray_compat.parity.workloads.batch_file import load_requests


def line(custom_id: Any = "a", url: str = "/v1/completions", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "traffic.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_requests_keep_what_they_ask(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line("text", model="m", prompt="Go", max_tokens=7, temperature=0.5, logprobs=3, echo=False),
        "",
        line("ids", prompt=[1, 2, 3], seed=4, stop=["x"], stream=True),
        line(
            "chat",
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "Hi"}],
            max_completion_tokens=9,
            logprobs=True,
            top_logprobs=2,
        ),
        line("vector", "/v1/embeddings", input="Hello", encoding_format="float"),
    )
    suite = load_requests(path)
    assert suite.name == "traffic"
    generate, embed = suite.workloads
    text, ids, chat = generate.requests
    assert (text.prompt.text, text.sampling) == (
        "Go",
        {"max_tokens": 7, "temperature": 0.5, "logprobs": 3},
    )
    assert ids.prompt.render() == {"prompt_token_ids": [1, 2, 3]}
    assert ids.sampling == {"seed": 4, "stop": ["x"]}
    assert chat.prompt.render() == [{"role": "user", "content": "Hi"}]
    assert chat.sampling == {"max_tokens": 9, "logprobs": 2}
    assert embed.kind == "embed"
    assert suite.profile(embed.profile).engine == {"runner": "pooling"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "traffic.jsonl:2:2: Expecting property name"),
        ("[]", 'traffic.jsonl:2: expected an object with "custom_id"'),
        (line("", prompt="x"), '"custom_id" is missing'),
        (line("b", "/v1/images", prompt="x"), "'/v1/images'; expected one of /v1/completions"),
        (line("b"), '"prompt" must be one text or one list of token ids'),
        (line("b", prompt=["one", "two"]), '"prompt" must be one text'),
        (line("b", prompt="x", suffix="y"), "cannot be replayed: suffix"),
        (line("b", prompt="x", temprature=1), "cannot be replayed: temprature"),
        (line("a", prompt="x"), "custom_id 'a' is that of line 1"),
        (line("b", "/v1/chat/completions", messages=[]), '"messages" is missing'),
        (
            line("b", "/v1/chat/completions", messages=[{"role": "user", "content": [{}]}]),
            "a message whose content is no text",
        ),
    ],
)
def test_a_line_that_cannot_be_used_says_which(tmp_path: Path, bad: str, said: str) -> None:
    with pytest.raises(SuiteError) as caught:
        load_requests(write(tmp_path, line("a", prompt="x"), bad))
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        load_requests(write(tmp_path, "{", *[line(str(n)) for n in range(30)]))
    text = str(caught.value)
    assert "traffic.jsonl:1:" in text
    assert "traffic.jsonl:5:" in text
    assert text.endswith("and 11 more.")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "traffic.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SuiteError, match=r"traffic\.jsonl: (cannot be read|holds no request)"):
        load_requests(path)
