"""What the benchmark of executors concludes from its rounds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def ratios() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "benchmark_ratios.py"
    spec = importlib.util.spec_from_file_location("benchmark_ratios", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("count", "expected"),
    # Ranks of the 95 % interval of a median, as tables of the sign test have them.
    [(5, None), (6, (1, 6)), (9, (2, 8)), (15, (4, 12)), (20, (6, 15)), (25, (8, 18))],
)
def test_interval_of_a_median(
    ratios: ModuleType, count: int, expected: tuple[int, int] | None
) -> None:
    shuffled = [float(value) for value in (*range(2, count + 1, 2), *range(1, count + 1, 2))]
    assert ratios.interval(shuffled) == expected


@pytest.mark.parametrize(
    ("middle", "limits", "budget", "expected"),
    [
        (1.00, (0.98, 1.04), 1.05, "holds"),
        (1.00, (0.98, 1.06), 1.05, "holds by the median"),
        (1.06, (1.04, 1.10), 1.05, "missed by the median"),
        (1.08, (1.06, 1.10), 1.05, "BROKEN"),
        (1.00, (0.995, 1.2), 0.99, "holds"),
        (0.95, (0.90, 0.98), 0.99, "BROKEN"),
        (1.00, None, 1.05, "holds by the median"),
    ],
)
def test_verdict(
    ratios: ModuleType,
    middle: float,
    limits: tuple[float, float] | None,
    budget: float,
    expected: str,
) -> None:
    assert ratios.verdict(middle, limits, budget) == expected


def test_a_slower_candidate_breaks_every_budget(ratios: ModuleType) -> None:
    fast = {
        "rpc_p50_us": 100.0,
        "rpc_per_s": 9000.0,
        "step_p50_us": 800.0,
        "decode_tokens_per_s": 5e3,
    }
    slow = {m: v * (1.2 if m.endswith("_us") else 0.8) for m, v in fast.items()}
    found = ratios.conclude([{"reference": fast, "candidate": slow}] * 6)
    assert {one["verdict"] for one in found.values()} == {"BROKEN"}
    same = ratios.conclude([{"reference": fast, "candidate": dict(fast)}] * 6)
    assert {one["verdict"] for one in same.values()} == {"holds"}
