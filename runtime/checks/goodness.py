"""Pearson's chi-square: how well counts fit the shares that they should have. Knows nothing of what was counted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEAST_EXPECTED = 25.0
"""A cell that expects fewer is pooled with others: the distribution of the statistic is a limit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`p` is the probability of a statistic as large as this if the shares are right."""

    statistic: float
    freedom: int
    p: float


def fit(counts: np.ndarray, shares: np.ndarray) -> Fit:
    """Of counts [N] against shares [N] that sum up to 1. Small cells are one cell, or part of the smallest other."""
    total = counts.sum()
    expected = shares * total
    order = np.argsort(-expected, kind="stable")
    counts, expected = counts[order].astype(np.float64), expected[order]
    large = int((expected >= LEAST_EXPECTED).sum())
    if expected[large:].sum() < LEAST_EXPECTED:
        large -= 1
    if large < 1:
        return Fit(0.0, 0, 1.0)
    counts = np.append(counts[:large], counts[large:].sum())
    expected = np.append(expected[:large], expected[large:].sum())
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    return Fit(statistic, large, tail(statistic, large))


def tail(statistic: float, freedom: int) -> float:
    """The upper tail of chi-square, by the recurrence of the incomplete gamma function (DLMF 8.8.2)."""
    x = statistic / 2
    if x <= 0:
        return 1.0
    a, found = (0.5, math.erfc(math.sqrt(x))) if freedom % 2 else (1.0, math.exp(-x))
    while a < freedom / 2:
        found += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(found, 1.0)
