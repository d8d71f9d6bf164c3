"""Prices have the bundle's shape, are positive and never fall with more rows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tandem.artifacts.reader import Bundle
from tandem.keys import Kind, context_classes
from tandem.prices import PriceModel
from tandem.runtime.checks.pricing import VERIFY_ROWS, measure
from tests.fakes import ScriptedExecutor, geometry


def test_measured_prices_are_those_of_the_passes() -> None:
    capacities = geometry(context_length=2000)
    steps: list[str] = []
    table = measure(ScriptedExecutor(capacities=capacities), steps.append)  # a pass takes 1 + 0.1 a row
    assert {key for key in table if key.isdigit()} == {"1024", "2000"} and steps
    for bound in ("1024", "2000"):
        assert table[bound]["plain"] == pytest.approx(1.1)
        assert table[bound]["verify-chain"] == pytest.approx({str(rows): 1 + 0.1 * rows for rows in VERIFY_ROWS})
        assert table[bound]["commit"] == pytest.approx({"1": 0.1, "16": 0.1})
    assert table["step_ms"] == pytest.approx(0.1)


def test_classes_that_no_page_holds_are_left_out() -> None:
    capacities = geometry(context_length=4000)
    table = measure(ScriptedExecutor(capacities=capacities, num_pages=150))  # 1200 tokens
    assert [key for key in table if key.isdigit()] == ["1024"]


def test_a_bundle_has_sane_prices(opened: Bundle) -> None:
    classes = {str(bound) for bound in context_classes(opened.geometry.context_length)}
    assert {key for key in opened.prices if key.isdigit()} == classes
    for bound in classes:
        entry = opened.prices[bound]
        assert entry["plain"] == entry["extend"]["1"]
        for kind in Kind:
            counts, times = [int(rows) for rows in entry[kind.value]], list(entry[kind.value].values())
            assert counts == sorted(counts) and min(times) > 0
            assert all(less <= more for less, more in pairwise(times))
    model = PriceModel(opened.prices)
    assert all(model.ms(100, kind, 1) <= model.ms(100, kind, 32) for kind in Kind)
