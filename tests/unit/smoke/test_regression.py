"""Growth is told from noise, stairs and a warm-up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.report.model import Status
from envbuilder.smoke.checks.soak import judge_growth
from envbuilder.smoke.regression import trend, warm_up


def noisy(count: int, slope: float, noise: float) -> list[float]:
    source = random.Random(1)
    return [1000 + slope * i + source.gauss(0, noise) for i in range(count)]


@pytest.mark.parametrize(
    ("series", "device", "status"),
    [
        ([1000.0] * 40, "cuda", Status.PASSED),
        (noisy(40, 10.0, 3.0), "cpu", Status.FAILED),  # the seeded leak: 10 MB a step
        (noisy(200, 0.5, 1.0), "cuda", Status.FAILED),
        (noisy(60, 0.0, 2.0), "cpu", Status.PASSED),
        ([500.0, 900.0, 980.0, 1000.0] + [1000.0] * 40, "cuda", Status.PASSED),  # caches fill in the first steps
        ([1000.0] * 9, "cuda", Status.UNKNOWN),
        (noisy(12, 0.0, 60.0), "cpu", Status.UNKNOWN),
        ([1000.0 + 64.0 * (i // 50) for i in range(250)], "cuda", Status.FAILED),  # stairs that go on
    ],
)
def test_growth(series: list[float], device: str, status: Status) -> None:
    outcome = judge_growth(series, device)
    assert outcome.status is status, outcome.message
    assert outcome.message


@settings(max_examples=60, deadline=None)
@given(
    slope=st.floats(-50, 50),
    base=st.floats(1, 1e6),
    count=st.integers(12, 120),
    noise=st.floats(0, 5),
    seed=st.integers(),
)
def test_the_interval_holds_the_slope_it_finds(slope: float, base: float, count: int, noise: float, seed: int) -> None:
    source = random.Random(seed)
    found = trend([base + slope * i + source.uniform(-noise, noise) for i in range(count)])
    if count - warm_up(count) < 8:
        assert found is None
        return
    assert found is not None
    assert found.low <= found.slope <= found.high
    assert abs(found.slope - slope) <= 2 * noise + 1e-6 * base


def test_a_slope_without_noise_is_exact() -> None:
    found = trend([3.0 * i for i in range(40)])
    assert found is not None
    assert found.slope == pytest.approx(3.0)
    assert found.high - found.low < 1e-6
