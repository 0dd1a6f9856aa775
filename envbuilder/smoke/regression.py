"""Does a series grow? Least squares with a confidence interval that knows of correlated residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond 30 the normal one with a small correction.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
LEAST = 8


@dataclass(frozen=True)
class Trend:
    """A slope per step with its 95 % interval, over ``count`` steps after ``skipped`` of warm-up, in one unit."""

    slope: float
    low: float
    high: float
    count: int
    skipped: int


def warm_up(count: int) -> int:
    """How many first steps to leave out: a fifth, at least two. Caches and optimiser states are made in them."""
    return max(2, count // 5)


def trend(values: Sequence[float], skipped: int | None = None) -> Trend | None:
    """The trend of ``values``, one a step; None when fewer than eight are left after the warm-up.

    The interval uses the effective number of samples n (1 - r) / (1 + r), r the residuals' lag-one correlation, since
    memory moves in stairs and a plain interval would be too narrow.
    """
    skip = warm_up(len(values)) if skipped is None else skipped
    y = [float(v) for v in values[skip:]]
    n = len(y)
    if n < LEAST:
        return None
    mean_x, mean_y = (n - 1) / 2, sum(y) / n
    spread = sum((i - mean_x) ** 2 for i in range(n))
    slope = sum((i - mean_x) * (v - mean_y) for i, v in enumerate(y)) / spread
    residuals = [v - mean_y - slope * (i - mean_x) for i, v in enumerate(y)]
    squares = sum(r * r for r in residuals)
    if squares <= 1e-12 * max(1.0, mean_y * mean_y):
        return Trend(slope, slope, slope, n, skip)
    lag = sum(a * b for a, b in pairwise(residuals)) / squares
    lag = min(max(lag, 0.0), 0.95)
    effective = max(3.0, n * (1 - lag) / (1 + lag))
    error = math.sqrt(squares / (effective - 2 + 1e-9) / spread)
    freedom = max(1, int(effective) - 2)
    quantile = _T[freedom - 1] if freedom <= len(_T) else 1.96 + 2.4 / freedom
    return Trend(slope, slope - quantile * error, slope + quantile * error, n, skip)
