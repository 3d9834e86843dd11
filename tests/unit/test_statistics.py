from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ray_compat.parity.statistics import fisher, smallest_fraction, statistics


@given(st.integers(1, 10**7))
def test_the_smallest_fraction_is_seen_with_the_stated_probability(n: int) -> None:
    fraction = smallest_fraction(n)
    assert fraction is not None
    missed = math.exp(n * math.log1p(-fraction))
    assert missed == pytest.approx(0.05)


def test_the_rule_of_three() -> None:
    assert smallest_fraction(1000) == pytest.approx(3 / 1000, rel=0.01)
    assert smallest_fraction(1) == pytest.approx(0.95)
    assert smallest_fraction(0) is None


def test_fisher_against_a_table() -> None:
    """Lady tasting tea: 3 of 4 right is 17/70, 4 of 4 is 1/70."""
    assert fisher(3, 4, 1, 4) == pytest.approx(17 / 70)
    assert fisher(4, 4, 0, 4) == pytest.approx(1 / 70)
    assert fisher(0, 10, 3, 10) == pytest.approx(1)


def test_no_noise_no_p() -> None:
    found = statistics(100, 4000, 0, 3, 200, 0)
    assert found.p_value is None
    assert (found.noise_runs, found.noise_requests) == (3, 200)
    assert statistics(0, 0, 0, 1, 0, 0).smallest_request_fraction is None


def test_as_noisy_as_the_reference() -> None:
    same, worse = statistics(100, 1, 5, 2, 100, 5), statistics(100, 1, 40, 2, 100, 5)
    assert same.p_value is not None
    assert worse.p_value is not None
    assert same.p_value > 0.3
    assert worse.p_value < 1e-6
