"""The load of a benchmark, on a made-up engine that takes a fixed time for a step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_ray_compat.bench import load


@dataclass
class Clockwork:
    """Gives every request one token a step; the clock goes on by a step's time, and stands else."""

    step_s: float = 0.01
    prefill_s: float = 0.03
    short: int = 0
    now: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    most_at_once: int = 0

    def add(self, request: str, tokens: int) -> None:
        assert request not in self.left
        self.left[request] = tokens - self.short
        self.fresh.add(request)

    def step(self) -> list[Any]:
        self.now += self.prefill_s if self.fresh else self.step_s
        self.fresh.clear()
        self.most_at_once = max(self.most_at_once, sum(n > 0 for n in self.left.values()))
        given = [request for request, n in self.left.items() if n > 0]
        for request in given:
            self.left[request] -= 1
        return [
            SimpleNamespace(request_id=r, outputs=[SimpleNamespace(token_ids=[1])]) for r in given
        ]

    def busy(self) -> bool:
        return any(n > 0 for n in self.left.values())

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    made = Clockwork()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def test_a_batch(engine: Clockwork) -> None:
    found = load.batch(engine, size=4, tokens=11, repeats=3, name="b")
    assert found == pytest.approx(
        {
            "tokens_per_s": 400.0,  # 4 at each step of 10 ms; prefill is no part of decode
            "steps_per_s": 100.0,
            "step_p50_us": 10_000.0,
            "ttft_p50_ms": 30.0,
            "itl_p50_ms": 10.0,
            "itl_p99_ms": 10.0,
        }
    )
    assert engine.most_at_once == 4


def test_requests_that_arrive(engine: Clockwork) -> None:
    found = load.arrivals(engine, rate=2.0, requests=50, tokens=5, name="a", sleep=engine.sleep)
    assert set(found) == {
        "requests_per_s",
        *(f"{n}_p{p}_ms" for n in ("ttft", "itl") for p in (50, 99)),
    }
    assert found["requests_per_s"] == pytest.approx(2.0, rel=0.5)
    assert found["ttft_p50_ms"] == pytest.approx(30.0, abs=1)


def test_time_to_first_token_counts_from_when_a_request_was_due(engine: Clockwork) -> None:
    """An engine that is too slow for the rate has a queue, and that is seen."""
    engine.prefill_s = 1.0
    found = load.arrivals(engine, rate=100.0, requests=50, tokens=5, name="a", sleep=engine.sleep)
    assert found["ttft_p99_ms"] > 1200
    assert engine.most_at_once > 10


def test_a_request_that_ends_early_is_no_measurement(engine: Clockwork) -> None:
    engine.short = 1
    with pytest.raises(load.MissingTokensError, match="10 tokens, not 11"):
        load.batch(engine, size=4, tokens=11, repeats=1, name="b")
    with pytest.raises(load.MissingTokensError, match="4 tokens, not 5"):
        load.arrivals(engine, rate=2.0, requests=3, tokens=5, name="a", sleep=engine.sleep)
