"""Prices have the bundle's shape, are positive and never fall with more rows."""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest

from tandem.artifacts.reader import Bundle
from tandem.keys import TARGET_KINDS, Kind, context_classes
from tandem.prices import PriceModel
from tandem.runtime.checks.pricing import VERIFY_ROWS, measure
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry

STEPS = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)


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


ENTRIES = [
    *((kind, bound, rows) for kind in STEPS for bound in (1024, 2000) for rows in (1, 2, 4, 8, 16, 24, 32)),
    *((Kind.EXTEND, 0, rows) for rows in (64, 128)),
    (Kind.COMMIT, 0, 32),
]


def test_a_program_for_each_row_count_is_a_step_of_the_staircase() -> None:
    capacities = geometry(context_length=2000, max_rows=128, page_tokens=64, page_bytes=512)
    executor = ScriptedExecutor(lambda ids: 0, capacities=capacities, num_pages=40, entries=ENTRIES)
    table = measure(executor)  # a pass takes 1 + 0.1 a row of its program
    assert executor.ran == {e for e in ENTRIES if e[0] is not Kind.EXTEND or e[1] == 0}, "a step is priced as a chain"
    model = PriceModel(table)
    for context, kind in itertools.product((10, 1900), STEPS):
        for rows in range(1, 33):
            program = next(held for held in (1, 2, 4, 8, 16, 24, 32) if held >= rows)
            assert model.ms(context, kind, rows) == pytest.approx(1 + 0.1 * program, rel=1e-3)
        assert model.ms(context, Kind.COMMIT, 5) == pytest.approx(0.1)
    prefill = [model.ms(10, Kind.EXTEND, rows) for rows in (33, 64, 65, 100, 128)]
    assert prefill == pytest.approx([7.4, 7.4, 13.8, 13.8, 13.8])
    assert table["step_ms"] == pytest.approx(0.1) and table["1024"]["plain"] == pytest.approx(1.1)


def test_a_step_that_moves_a_state_on_has_a_price_of_its_own() -> None:
    entries = [*((kind, 96, rows) for kind in STEPS for rows in (1, 4, 32)), (Kind.EXTEND, 0, 40), (Kind.COMMIT, 0, 32)]
    executor = RecurrentExecutor(script=lambda ids: 0, entries=entries)
    measure(executor)
    assert executor.ran == set(entries)


def test_rows_that_need_the_room_are_priced_at_a_shorter_context() -> None:
    capacities = geometry(context_length=96, max_rows=96)
    entries = [*((kind, 96, 32) for kind in STEPS), (Kind.EXTEND, 0, 96), (Kind.COMMIT, 0, 32)]
    table = measure(ScriptedExecutor(capacities=capacities, entries=[*entries, (Kind.EXTEND, 96, 1)]))
    assert table["96"]["extend"] == pytest.approx({"1": 1.1, "2": 4.2, "32": 4.2, "33": 10.6, "96": 10.6})


def test_a_bundle_has_sane_prices(opened: Bundle) -> None:
    classes = {str(bound) for bound in context_classes(opened.geometry.context_length)}
    assert {key for key in opened.prices if key.isdigit()} == classes
    for bound in classes:
        entry = opened.prices[bound]
        assert entry["plain"] == entry["extend"]["1"]
        for kind in TARGET_KINDS:
            counts, times = [int(rows) for rows in entry[kind.value]], list(entry[kind.value].values())
            assert counts == sorted(counts) and min(times) > 0
            assert all(less <= more for less, more in pairwise(times))
    model = PriceModel(opened.prices)
    assert all(model.ms(100, kind, 1) <= model.ms(100, kind, 32) for kind in Kind)
