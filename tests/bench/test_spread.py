"""Spreads, side-by-side ratios and goals, against values worked by hand."""

from __future__ import annotations

import pytest

from spread import Goal, Spread


def test_median_least_and_greatest() -> None:
    runs = Spread.of([3.0, 1.0, 2.0, 10.0])
    assert (runs.median, runs.least, runs.greatest) == (2.5, 1.0, 10.0)
    assert runs.text(1) == "2.5 (1.0 to 10.0)"
    assert Spread.of([2.5]).text(2) == "2.50"


def test_a_ratio_is_taken_run_by_run() -> None:
    # A slow second turn slows both sides: their ratio stays.
    assert Spread.of([10.0, 5.0, 10.0]).over(Spread.of([5.0, 2.5, 4.0])).runs == (2.0, 2.0, 2.5)


def test_sides_of_unequal_length_are_no_pair() -> None:
    with pytest.raises(ValueError):
        Spread.of([1.0, 2.0]).over(Spread.of([1.0]))


def test_a_record_keeps_every_run() -> None:
    record = Spread.of([1.23456789, 2.0]).record()
    assert record == {"median": 1.6173, "least": 1.2346, "greatest": 2.0, "runs": [1.2346, 2.0]}


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal(2.5, 3.0), 2.4, "missed"),
        (Goal(2.5, 3.0), 2.5, "reached"),
        (Goal(2.5, 3.0), 3.0, "aim reached"),
        (Goal(1.9, 1.6), 2.0, "missed"),
        (Goal(1.9, 1.6), 1.9, "reached"),
        (Goal(1.9, 1.6), 1.6, "aim reached"),
    ],
)
def test_goals_may_want_more_or_less(goal: Goal, value: float, verdict: str) -> None:
    assert goal.verdict(value) == verdict


def test_a_goal_says_which_way_it_points() -> None:
    assert str(Goal(0.98, 1.0)) == "at least 0.98, aim 1"
    assert str(Goal(1.9, 1.6)) == "at most 1.9, aim 1.6"
