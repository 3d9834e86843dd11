"""Captures made by hand."""

from __future__ import annotations

from typing import Any

from vllm_ray_compat.parity import capture as cap


def output(**changes: Any) -> cap.Output:
    base: dict[str, Any] = {
        "index": 0,
        "token_ids": [5, 6, 7, 8],
        "text": "abcd",
        "finish_reason": "length",
        "stop_reason": None,
        "cumulative_logprob": -2.5,
        "logprobs": [
            [(5, -0.5, 1), (9, -1.5, 2)],
            [(6, -0.25, 1)],
            [(7, -1.0, 1)],
            [(8, -0.75, 1)],
        ],
    }
    return cap.Output(**{**base, **changes})


def result(workload: str = "w", request: str = "r0", **changes: Any) -> cap.Result:
    base: dict[str, Any] = {
        "outputs": [output()],
        "prompt_token_ids": [1, 2],
        "prompt_logprobs": [None, [(2, -3.0, 4)]],
        "num_cached_tokens": 0,
    }
    return cap.Result(workload=workload, request=request, **{**base, **changes})


def header(**changes: Any) -> cap.Header:
    base: dict[str, Any] = {
        "role": "reference",
        "backend": "legacy",
        "topology": "tp2",
        "suite": "smoke",
        "model": "/m",
        "engine_core": "inproc",
        "started_at": 0.0,
    }
    return cap.Header(**{**base, **changes})


def capture(*results: cap.Result, backend: str = "legacy") -> cap.Capture:
    made = list(results) or [
        result("w", "r0"),
        result("w", "r1"),
        result("x", "r0"),
        result("x", "r1"),
        result("x", "r2"),
    ]
    return cap.Capture(header=header(backend=backend), results=made)
