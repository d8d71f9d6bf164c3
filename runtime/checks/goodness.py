"""Pearson's chi-square: how well counts fit the shares that they should have. Knows nothing of what was counted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEAST_EXPECTED = 25.0
"""Cells that expect fewer are pooled: the distribution of the statistic is a limit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`p` is the probability of a statistic as large as this if the shares are right."""

    statistic: float
    freedom: int
    p: float


def fit(counts: np.ndarray, shares: np.ndarray) -> Fit:
    """Of counts [N] against shares [N] that sum up to 1; the likeliest first, cells join until they expect enough."""
    pooled, seen, wanted = list[tuple[float, float]](), 0.0, 0.0
    for i in np.argsort(-shares, kind="stable"):
        seen, wanted = seen + counts[i], wanted + shares[i] * counts.sum()
        if wanted >= LEAST_EXPECTED:
            pooled.append((seen, wanted))
            seen = wanted = 0.0
    if not pooled:
        return Fit(0.0, 0, 1.0)
    pooled[-1] = pooled[-1][0] + seen, pooled[-1][1] + wanted  # the rest expects too few
    statistic = sum((found - expected) ** 2 / expected for found, expected in pooled)
    return Fit(float(statistic), len(pooled) - 1, tail(statistic, len(pooled) - 1))


def tail(statistic: float, freedom: int) -> float:
    """The upper tail of chi-square, by the recurrence of the incomplete gamma function (DLMF 8.8.2)."""
    x = statistic / 2
    if x <= 0 or freedom < 1:
        return 1.0
    a, found = (0.5, math.erfc(math.sqrt(x))) if freedom % 2 else (1.0, math.exp(-x))
    while a < freedom / 2:
        found += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(found, 1.0)
