"""How a figure is printed and recorded."""

from __future__ import annotations

import json

import pytest

from figure import Figure, Line
from spread import Goal, Spread


def _figure() -> Figure:
    ratio = Line("over peer", Spread.of([1.1, 1.3, 1.2]), "x", Goal(1.0, 1.5), "a note")
    return Figure(
        "decode-bf16",
        "plain decoding",
        [Line("ours", Spread.of([100.0, 90.0, 110.0]), "tok/s"), ratio],
        identical=False,
    )


def test_the_table_shows_the_spread_the_goal_and_differing_ids() -> None:
    figure = _figure()
    figure.absent.append("peer: not there")
    head, ours, ratio, same, absent = figure.text().splitlines()
    assert head == "decode-bf16: plain decoding"
    assert ours.split() == ["ours", "100.0", "(90.0", "to", "110.0)", "tok/s"]
    assert "1.20 (1.10 to 1.30) x   [at least 1, aim 1.5: reached]   a note" in ratio
    assert same.split() == ["same", "ids:", "NO"]
    assert absent.strip() == "left out: peer: not there"


def test_the_record_is_json_with_every_run_and_the_verdict() -> None:
    record = json.loads(json.dumps(_figure().record()))
    assert record["identical"] is False
    ours, ratio = record["lines"]
    assert "verdict" not in ours
    assert ours["runs"] == [100.0, 90.0, 110.0]
    assert ratio["runs"] == [1.1, 1.3, 1.2]
    assert (ratio["goal"], ratio["verdict"]) == ("at least 1, aim 1.5", "reached")


def test_markdown_has_a_row_per_line() -> None:
    rows = _figure().markdown().splitlines()
    assert rows[0] == "**plain decoding** (`--only decode-bf16`)"
    assert "| ours | 100.0 (90.0 to 110.0) tok/s |  |  |" in rows
    assert "| over peer | 1.20 (1.10 to 1.30) x | at least 1, aim 1.5: reached | a note |" in rows
    assert all(row.count("|") == 5 for row in rows if row.startswith("|"))


@pytest.mark.parametrize(
    ("value", "goal", "missed"), [(0.9, Goal(1.0, 1.5), True), (1.0, Goal(1.0, 1.5), False), (0.1, None, False)]
)
def test_a_line_without_a_goal_misses_none(value: float, goal: Goal | None, missed: bool) -> None:
    assert Line("a ratio", Spread.of([value]), "x", goal).missed is missed


def test_a_loss_is_shown_as_far_as_its_goal_asks() -> None:
    assert (
        "3.141593 nats   [at most 0.0001, aim 0: missed]"
        in Line("apart", Spread.of([3.14159265]), "nats", Goal(1e-4, 0.0)).text()
    )
