"""Prices: what a table may hold, how gaps are filled, and how live times move them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.curve import Curve
from tandem.errors import BundleCorrupt
from tandem.keys import Kind
from tandem.prices import PriceModel, context_key

TABLE = {
    "1024": {"extend": {"1": 20.0, "2": 22.0}, "verify-tree": {"2": 24.0, "4": 30.0, "8": 50.0}, "plain": 21.0},
    "4096": {"extend": {"1": 30.0}, "verify-tree": {"4": 40.0}},
    "measured": "by hand",
}


def test_interpolates_between_counts_and_goes_on_at_the_last_slope():
    prices = PriceModel(TABLE)
    ms = [prices.ms(100, Kind.VERIFY_TREE, rows) for rows in (1, 2, 3, 4, 6, 8, 10)]
    assert ms == pytest.approx([24.0, 24.0, 27.0, 30.0, 40.0, 50.0, 60.0])
    assert PriceModel(TABLE, step_ms=1.5).ms(100, Kind.VERIFY_TREE, 10) == pytest.approx(53.0)
    assert PriceModel({**TABLE, "step_ms": 2.0}).ms(100, Kind.VERIFY_TREE, 40) == pytest.approx(114.0)


@pytest.mark.parametrize(
    ("context", "expected"), [(0, 20.0), (1024, 20.0), (1025, 20.0), (4096, 30.0), (2049, 30.0), (100_000, 30.0)]
)
def test_a_missing_class_takes_the_nearest_lower_one(context, expected):
    assert PriceModel(TABLE).ms(context, Kind.EXTEND, 1) == expected


def test_below_the_lowest_class_and_with_a_clipped_last_class():
    assert PriceModel({"4096": {"extend": {"1": 9.0}}}).ms(10, Kind.EXTEND, 1) == 9.0
    clipped = {"1024": {"extend": {"1": 1.0}}, "3000": {"extend": {"1": 3.0}}}
    assert PriceModel(clipped).ms(2500, Kind.EXTEND, 1) == 3.0
    assert [context_key(c) for c in (0, 1, 1024, 1025, 8192, 8193)] == [1024, 1024, 1024, 2048, 8192, 16384]


def test_a_kind_the_table_lacks_borrows_its_kin_and_an_unpriced_commit_is_free():
    prices = PriceModel(TABLE)
    assert prices.ms(10, Kind.VERIFY_CHAIN, 4) == 30.0
    assert prices.ms(10, Kind.COMMIT, 4) == 0.0
    prices.observe(10, Kind.COMMIT, 4, 0.25)
    assert prices.ms(10, Kind.COMMIT, 4) == pytest.approx(0.25)


def test_without_a_table_every_count_starts_at_one_and_the_first_sample_is_believed():
    prices = PriceModel()
    assert {prices.ms(500, kind, rows) for kind in Kind if kind != Kind.COMMIT for rows in (1, 7, 32)} == {1.0}
    prices.observe(500, Kind.EXTEND, 1, 42.0)
    prices.observe(500, Kind.VERIFY_TREE, 32, 90.0)
    assert prices.ms(500, Kind.EXTEND, 1) == pytest.approx(42.0)
    assert prices.ms(500, Kind.VERIFY_TREE, 32) == pytest.approx(90.0)


def test_a_live_time_moves_its_count_by_a_tenth_and_its_kind_along():
    prices = PriceModel(TABLE)
    prices.observe(10, Kind.VERIFY_TREE, 8, 100.0)
    assert prices.ms(10, Kind.VERIFY_TREE, 8) == pytest.approx(55.0)  # 50 + (100 - 50) / 10
    assert prices.ms(10, Kind.VERIFY_TREE, 4) == pytest.approx(33.0)  # not measured: shifted by the same share
    assert prices.ms(10, Kind.EXTEND, 1) == pytest.approx(20.0)  # a verify says nothing of the step


def test_a_step_moves_all_passes_along():
    prices = PriceModel(TABLE)
    prices.observe(10, Kind.EXTEND, 1, 40.0)
    assert prices.ms(10, Kind.EXTEND, 1) == pytest.approx(22.0)
    assert prices.ms(10, Kind.EXTEND, 2) == pytest.approx(24.2)
    assert prices.ms(10, Kind.VERIFY_TREE, 8) == pytest.approx(55.0)
    assert prices.ms(4096, Kind.EXTEND, 1) == pytest.approx(33.0)  # nor this class, first met after it


def test_a_slow_spell_leaves_the_proportions_alone():
    """Steps alone are measured in it; a verify is as many steps as before."""
    prices = PriceModel(TABLE)
    for _ in range(20):
        prices.observe(10, Kind.VERIFY_TREE, 4, 36.0)
    before = prices.ms(10, Kind.VERIFY_TREE, 4) / prices.ms(10, Kind.EXTEND, 1)
    for _ in range(10):
        prices.observe(10, Kind.EXTEND, 1, 60.0)
    assert prices.ms(10, Kind.EXTEND, 1) > 40.0
    assert prices.ms(10, Kind.VERIFY_TREE, 4) / prices.ms(10, Kind.EXTEND, 1) == pytest.approx(before, rel=0.02)


def test_steps_of_several_lanes_are_steps_too():
    prices = PriceModel(TABLE)
    for _ in range(50):
        prices.observe(10, Kind.EXTEND, 2, 66.0)  # three times the table
    assert prices.ms(10, Kind.EXTEND, 2) == pytest.approx(66.0, rel=0.01)
    assert 48.0 < prices.ms(10, Kind.EXTEND, 1) < 60.0 and 72.0 < prices.ms(10, Kind.VERIFY_TREE, 4) < 90.0


def test_follows_a_machine_that_became_slower_and_forgets_a_slow_spell():
    prices = PriceModel(TABLE)
    for _ in range(100):
        prices.observe(10, Kind.VERIFY_TREE, 4, 90.0)
    assert prices.ms(10, Kind.VERIFY_TREE, 4) == pytest.approx(90.0, rel=0.01)
    assert prices.ms(10, Kind.VERIFY_TREE, 8) == pytest.approx(150.0, rel=0.01)
    for _ in range(1500):
        prices.observe(10, Kind.EXTEND, 1, 20.0)
    assert prices.ms(10, Kind.VERIFY_TREE, 4) == pytest.approx(30.0, rel=0.2)


def test_one_hiccup_does_not_poison_a_price_and_nonsense_is_ignored():
    prices = PriceModel(TABLE)
    prices.observe(10, Kind.EXTEND, 1, 5000.0)
    assert prices.ms(10, Kind.EXTEND, 1) <= 1.3 * 20.0 + 1e-9
    before = [prices.ms(10, kind, rows) for kind in Kind for rows in (1, 2, 8, 32)]
    for bad in (math.nan, math.inf, -1.0, 0.0):
        prices.observe(10, Kind.EXTEND, 1, bad)
    prices.observe(10, Kind.EXTEND, 256, 900.0)
    assert before == [prices.ms(10, kind, rows) for kind in Kind for rows in (1, 2, 8, 32)]


def test_counts_between_two_of_one_price_are_one_program_and_followed_as_one():
    table = {"1024": {"verify-tree": {"1": 10.0, "2": 12.0, "8": 12.0, "9": 15.0, "16": 15.0}}}
    prices = PriceModel(table)
    for rows in (2, 5, 3, 8, 7) * 10:
        prices.observe(10, Kind.VERIFY_TREE, rows, 24.0)
    assert {prices.ms(10, Kind.VERIFY_TREE, rows) for rows in range(2, 9)} == {prices.ms(10, Kind.VERIFY_TREE, 8)}
    assert prices.ms(10, Kind.VERIFY_TREE, 4) == pytest.approx(24.0, rel=0.01)
    # The next program is shifted along like any count that was not measured.
    assert prices.ms(10, Kind.VERIFY_TREE, 9) == pytest.approx(30.0, rel=0.01)
    assert prices.per_rows(10, Kind.VERIFY_TREE)[9:17] == [prices.ms(10, Kind.VERIFY_TREE, 16)] * 8


def test_only_counts_of_the_table_bound_a_program():
    assert Curve([4], [10.0], None).runs() == [(rows, rows) for rows in range(1, 33)]
    runs = Curve([2, 8, 16, 40], [1.0, 1.0, 1.0, 2.0], None).runs()
    assert runs[0] == (1, 1) and set(runs[1:16]) == {(2, 16)} and runs[16:] == [(r, r) for r in range(17, 33)]
    assert Curve([8, 64], [1.0, 1.0], None).runs()[6:9] == [(7, 7), (8, 32), (8, 32)]


def test_prices_that_do_not_live_stay_the_tables():
    prices = PriceModel(TABLE, live=False)
    for _ in range(50):
        prices.observe(10, Kind.EXTEND, 1, 99.0)
        prices.observe(10, Kind.VERIFY_TREE, 4, 99.0)
    assert [prices.ms(10, kind, 4) for kind in Kind] == [PriceModel(TABLE).ms(10, kind, 4) for kind in Kind]


def test_priors_of_a_class():
    prices = PriceModel(TABLE)
    assert (prices.prior(10, "plain"), prices.prior(10, "spec"), prices.prior(4096, "plain")) == (21.0, None, None)


points = st.dictionaries(st.integers(1, 40).map(str), st.floats(0.001, 1e3), min_size=1, max_size=6)
samples = st.lists(
    st.tuples(st.sampled_from([10, 3000]), st.sampled_from(list(Kind)), st.integers(1, 32), st.floats(1e-3, 1e5)),
    max_size=40,
)


@given(
    st.dictionaries(st.sampled_from(["0", "1024", "2048"]), st.dictionaries(st.sampled_from(list(Kind)), points)),
    st.none() | st.floats(0, 10),
    samples,
)
def test_prices_never_fall_with_more_rows(table, step_ms, observed):
    prices = PriceModel(table, step_ms)
    for sample in observed:
        prices.observe(*sample)
    for context in (10, 3000):
        for kind in Kind:
            ms = [prices.ms(context, kind, rows) for rows in range(1, 48)]
            assert all(math.isfinite(x) for x in ms) and ms == sorted(ms)
            assert ms[0] > 0 or kind is Kind.COMMIT


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"1024": {"extend": {"1": math.nan}}}, "1024.extend.1"),
        ({"1024": {"extend": {"1": math.inf}}}, "1024.extend.1"),
        ({"1024": {"extend": {"1": 10**400}}}, "1024.extend.1"),
        ({"1024": {"extend": {"1": -2.0}}}, "1024.extend.1"),
        ({"1024": {"extend": {"1": 0.0}}}, "1024.extend.1"),
        ({"1024": {"extend": {"1": True}}}, "1024.extend.1"),
        ({"1024": {"extend": {"1": "20"}}}, "1024.extend.1"),
        ({"1024": {"extend": {"one": 20.0}}}, "one"),
        ({"1024": {"extend": {"0": 20.0}}}, "'0'"),
        ({"1024": {"extend": {"01": 20.0}}}, "01"),
        ({"1024": {"extend": {"9" * 5000: 20.0}}}, "999"),
        ({"1024": {"extend": {}}}, "1024.extend"),
        ({"1024": {"extend": 20.0}}, "1024.extend"),
        ({"1024": {"tree": {"1": 20.0}}}, "1024.tree"),
        ({"1024": {"plain": None}}, "1024.plain"),
        ({"1024": [1, 2]}, "1024"),
        ({"-1": {}}, "-1"),
        ({"step_ms": "fast"}, "step_ms"),
        ({"measured": 3}, "measured"),
        ([], "the table"),
    ],
)
def test_a_bad_table_is_refused_by_key(table: Any, named: str):
    with pytest.raises(BundleCorrupt, match="prices: ") as caught:
        PriceModel(table or [1])
    assert named in str(caught.value)
