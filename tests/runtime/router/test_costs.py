"""What a draft costs: the first samples, outliers, and a cost that changes for good."""

from __future__ import annotations

import pytest

from tandem.runtime.router.costs import DraftCosts


def learned(*samples: float, prior: float = 0.0) -> float:
    costs = DraftCosts(lambda source, context_class, lanes: prior)
    for ms in samples:
        costs.observe("mtp", 1024, 1, ms)
    return costs.ms("mtp", 1024, 1)


def test_a_mean_of_three_then_a_moving_one():
    assert learned() == 0.0 and learned(prior=15.0) == 15.0
    assert learned(10.0) == 10.0 and learned(10.0, prior=15.0) == 10.0
    assert learned(10.0, 14.0) == 12.0 and learned(10.0, 14.0, 12.0) == 12.0
    assert learned(10.0, 14.0, 12.0, 22.0) == pytest.approx(12.0 + 0.3 * 10.0)


def test_outliers_are_no_cost():
    assert learned(10.0, 10.0, 782.6, 10.0) == 10.0
    assert learned(782.6, prior=15.0) == 15.0
    # Unless they go on.
    assert learned(10.0, 10.0, 100.0, 100.0) == 10.0
    assert learned(10.0, 10.0, 100.0, 100.0, 100.0) == 100.0
    # A first sample that was one is outgrown.
    assert learned(782.6, 10.0, 10.0, 10.0) == 10.0


@pytest.mark.parametrize("ms", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_not_learned(ms):
    assert learned(10.0, ms) == 10.0


def test_sources_classes_and_lanes_have_costs_of_their_own():
    costs = DraftCosts(lambda source, context_class, lanes: float(lanes))
    costs.observe("mtp", 1024, 1, 2.0)
    assert costs.ms("mtp", 1024, 1) == 2.0
    assert costs.ms("mtp", 2048, 1) == costs.ms("block", 1024, 1) == 1.0 and costs.ms("mtp", 1024, 3) == 3.0
