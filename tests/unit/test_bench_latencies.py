"""The figures of a series of calls, and what is counted as one."""

from __future__ import annotations

import pytest

from vllm_ray_compat.bench import round_trips
from vllm_ray_compat.bench.latencies import figures


def test_quantiles_are_microseconds() -> None:
    found = figures([number / 1e6 for number in range(1001, 0, -1)])  # 1 µs to 1001 µs
    assert found == pytest.approx(
        {
            "p50_us": 501.0,
            "p90_us": 901.0,
            "p99_us": 991.0,
            "p99_9_us": 1000.0,
            "per_s": 1001 / (1001 * 501 / 1e6),
        }
    )


def test_the_999th_thousandth_needs_a_thousand_calls() -> None:
    assert "p99_9_us" in figures([1e-3] * 1000)
    assert "p99_9_us" not in figures([1e-3] * 999)


def test_a_quantile_of_few_calls_is_no_slower_than_the_slowest() -> None:
    found = figures([1e-6, 1e-6, 9e-6])
    assert found["p50_us"] == pytest.approx(1)
    assert 8 < found["p99_us"] <= 9


@pytest.mark.parametrize("calls", [0, 1])
def test_one_call_has_no_quantiles(calls: int) -> None:
    with pytest.raises(ValueError, match=f"not {calls}"):
        figures([1e-3] * calls)


def test_calls_to_warm_up_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    took = iter([5.0, 5.0, 1e-3, 3e-3, 2e-3])

    def call() -> None:
        nonlocal now
        now += next(took)

    monkeypatch.setattr(round_trips.time, "perf_counter", lambda: now)
    found = round_trips.measure(call, calls=3, warm_up=2)
    assert found["p50_us"] == pytest.approx(2000)
    assert found["per_s"] == pytest.approx(500)
    assert next(took, None) is None


def test_a_wrong_answer_ends_the_measurement() -> None:
    def call() -> None:
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        round_trips.measure(call, calls=2)
