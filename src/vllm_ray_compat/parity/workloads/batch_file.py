"""Your own traffic as a suite: the OpenAI batch file that ``vllm run-batch`` reads.

One JSON object a line: ``{"custom_id": ..., "method": "POST", "url": "/v1/completions",
"body": {...}}``. Every line that cannot be used is told, all at once, with its number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vllm_ray_compat.errors import UsageError
from vllm_ray_compat.parity.workloads import (
    SCHEMA,
    Profile,
    Prompt,
    Request,
    Suite,
    SuiteError,
    Workload,
)

#: Parameters of the body that vLLM's ``SamplingParams`` has under the same name.
_SAME = frozenset(
    {
        *("n", "seed", "temperature", "top_p", "top_k", "min_p", "logit_bias", "min_tokens"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words"),
        *("stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
        *("skip_special_tokens", "spaces_between_special_tokens"),
        *("prompt_logprobs", "allowed_token_ids", "structured_outputs"),
    }
)
#: Parameters that say how an answer is sent, and nothing about it.
_IGNORED = frozenset(
    {"model", "stream", "stream_options", "user", "metadata", "store", "service_tier"}
)

_MOST_FAULTS_TOLD = 20


def load_requests(path: Path) -> Suite:
    """Read a batch file as a suite with one workload a kind of request.

    Args:
        path: the file.

    Raises:
        SuiteError: it cannot be read, or lines of it cannot be used: file, line, what was expected.
    """
    faults: list[str] = []
    found: dict[str, list[Request]] = {"generate": [], "embed": []}
    ids: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    kind, request = _request(json.loads(line.strip()))
                    if request.id in ids:
                        raise UsageError(
                            f"custom_id {request.id!r} is that of line {ids[request.id]}"
                        )
                    ids[request.id] = number
                    found[kind].append(request)
                except json.JSONDecodeError as error:
                    faults.append(f"{path}:{number}:{error.colno}: {error.msg}")
                except (UsageError, ValidationError) as error:
                    faults.append(f"{path}:{number}: {_told(error)}")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: cannot be read as a batch file: {error}.") from None
    if not faults and not ids:
        faults.append(f"{path}: holds no request")
    if faults:
        more = len(faults) - _MOST_FAULTS_TOLD
        told = faults[:_MOST_FAULTS_TOLD] + ([f"and {more} more"] if more > 0 else [])
        raise SuiteError("; ".join(told) + ".")
    return Suite(
        schema=SCHEMA,
        name=path.stem,
        profiles={"embedding": _EMBEDDING} if found["embed"] else {},
        workloads=tuple(
            Workload(
                name=name,
                about=f"The requests of {path.name}.",
                kind="embed" if kind == "embed" else "generate",
                profile="embedding" if kind == "embed" else "default",
                requests=tuple(found[kind]),
            )
            for kind, name in (("generate", "requests"), ("embed", "embeddings"))
            if found[kind]
        ),
    )


_EMBEDDING = Profile(about="As an embedding model.", engine={"runner": "pooling"})


def _request(line: Any) -> tuple[str, Request]:
    if not isinstance(line, dict) or not isinstance(line.get("body"), dict):
        raise UsageError('expected an object with "custom_id", "url" and "body"')
    custom_id, url, body = line.get("custom_id"), line.get("url"), dict(line["body"])
    if not isinstance(custom_id, str) or not custom_id:
        raise UsageError('"custom_id" is missing, or no text')
    make = _KINDS.get(str(url))
    if make is None:
        raise UsageError(f'"url" is {url!r}; expected one of {", ".join(_KINDS)}')
    return make(custom_id, body)


def _completion(custom_id: str, body: dict[str, Any]) -> tuple[str, Request]:
    prompt = _prompt(body.pop("prompt", None), "prompt")
    logprobs = body.pop("logprobs", None)
    sampling = _sampling(body)
    if logprobs is not None:
        sampling["logprobs"] = logprobs
    return "generate", Request(id=custom_id, prompt=prompt, sampling=sampling)


def _chat(custom_id: str, body: dict[str, Any]) -> tuple[str, Request]:
    messages = body.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise UsageError('"messages" is missing, or no list of messages')
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise UsageError("a message whose content is no text cannot be replayed")
    wanted, top = body.pop("logprobs", False), body.pop("top_logprobs", 0)
    if "max_completion_tokens" in body:  # its name since 2024
        body["max_tokens"] = body.pop("max_completion_tokens")
    sampling = _sampling(body)
    if wanted:
        sampling["logprobs"] = top
    return "generate", Request(
        id=custom_id, prompt=Prompt(messages=tuple(messages)), sampling=sampling
    )


def _embedding(custom_id: str, body: dict[str, Any]) -> tuple[str, Request]:
    prompt = _prompt(body.pop("input", None), "input")
    left = sorted(set(body) - _IGNORED - {"encoding_format"})
    if left:
        raise UsageError(f"parameters of the body that cannot be replayed: {', '.join(left)}")
    return "embed", Request(id=custom_id, prompt=prompt)


_KINDS: dict[str, Callable[[str, dict[str, Any]], tuple[str, Request]]] = {
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/v1/embeddings": _embedding,
}


def _prompt(given: Any, name: str) -> Prompt:
    if isinstance(given, str):
        return Prompt(text=given)
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        return Prompt(token_ids=tuple(given))
    raise UsageError(f'"{name}" must be one text or one list of token ids')


def _sampling(body: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters of what is left of the body.

    Raises:
        UsageError: a parameter that has no counterpart; leaving it out would compare another
            request than the one that was served.
    """
    sampling = {name: body.pop(name) for name in sorted(_SAME & set(body))}
    if "max_tokens" in body:
        sampling["max_tokens"] = body.pop("max_tokens")
    # False and null ask for nothing: "echo": false is in many files.
    asked = {name for name, value in body.items() if value is not None and value is not False}
    left = sorted(asked - _IGNORED)
    if left:
        raise UsageError(f"parameters of the body that cannot be replayed: {', '.join(left)}")
    return {name: value for name, value in sampling.items() if value is not None}


def _told(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).rstrip(".")
