"""Chi-square: quantiles as tables print them, pooling by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.runtime.checks.goodness import fit, tail


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"),
    [  # NIST/SEMATECH e-Handbook, section 1.3.6.7.4
        (3.841, 1, 0.05),
        (10.828, 1, 0.001),
        (5.991, 2, 0.05),
        (11.345, 3, 0.01),
        (18.307, 10, 0.05),
        (43.773, 30, 0.05),
        (45.315, 20, 0.001),
        (149.449, 100, 0.001),
        (2.558, 10, 0.99),
    ],
)
def test_tails_are_those_of_the_tables(statistic: float, freedom: int, p: float) -> None:
    assert tail(statistic, freedom) == pytest.approx(p, rel=2e-3)


def test_small_cells_are_pooled() -> None:
    # 100, 60, 20 + 10 + 10 expected of 200; the cells that nothing is expected of join the last one.
    found = fit(np.array([90, 70, 30, 6, 4, 0]), np.array([0.5, 0.3, 0.1, 0.05, 0.05, 0.0]))
    assert found.freedom == 2
    assert found.statistic == pytest.approx(10**2 / 100 + 10**2 / 60 + 0)
    assert fit(np.array([3, 4]), np.array([0.5, 0.5])).p == 1.0, "too few to tell"
    assert fit(np.zeros(2), np.array([0.5, 0.5])).freedom == 0


def test_even_cells_too_small_alone_are_told_apart_in_groups() -> None:
    found = fit(np.array([10, 10, 20, 20, 15, 15, 15, 15]), np.full(8, 1 / 8))
    assert found.freedom == 3 and found.statistic == pytest.approx((100 + 100) / 30)


def test_counts_that_fit_have_p_spread_evenly() -> None:
    shares, random = np.array([0.4, 0.3, 0.2, 0.1]), np.random.default_rng(5)
    found = [fit(random.multinomial(2000, shares), shares).p for _ in range(1000)]
    assert np.abs(np.histogram(found, 10, (0, 1))[0] - 100).max() < 40
