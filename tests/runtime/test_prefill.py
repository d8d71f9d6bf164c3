"""How prompts share the passes that bring them in: evenly, and no pass for longer than a few steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Entry
from tandem.runtime.prefill import PASS_STEPS, even_shares
from tandem.runtime.request import Request
from tests.fakes import EvenRouter, Recorder, ScriptedExecutor, geometry

WIDE = geometry(context_length=2048, max_rows=256)
STEP = {"1": 10.0, "256": 265.0}
"""A row more costs a millisecond more: 51 rows cost six steps, so 32 are the most."""


def engine_for(executor: ScriptedExecutor) -> Engine:
    return Engine(executor, drafters=None, router=EvenRouter(), prices=PriceModel({"1024": {"extend": STEP}}))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_shares_are_even(needs: list[int], total: int) -> None:
    shares = even_shares(needs, total)
    assert sum(shares) == min(total, sum(needs))
    assert all(0 <= share <= need for share, need in zip(shares, needs, strict=True))
    lacking = [share for share, need in zip(shares, needs, strict=True) if share < need]
    # Whoever lacks something has as much as anybody, but for the rest of a division.
    assert all(share >= max(shares) - 1 for share in lacking)


def test_earlier_ones_get_the_rest_of_a_division() -> None:
    assert even_shares([9, 9, 9], 8) == [3, 3, 2]
    assert even_shares([9, 9, 9], 2) == [1, 1, 0]


def test_a_pass_costs_no_more_than_a_few_steps() -> None:
    executor = ScriptedExecutor(capacities=WIDE)
    engine = engine_for(executor)
    engine.submit(Request((1,) * 100, 1), Recorder())
    while engine.step():
        pass
    assert executor.passes == [(Kind.EXTEND, rows) for rows in (32, 32, 32, 4)]
    assert 10.0 + 31 <= PASS_STEPS * 10.0 < 10.0 + 63


def test_a_device_of_many_programs_fills_one() -> None:
    entries: list[Entry] = [(Kind.EXTEND, 0, rows) for rows in (1, 8, 48, 64, 256)]
    executor = ScriptedExecutor(capacities=WIDE, entries=entries)
    engine = engine_for(executor)
    engine.submit(Request((1,) * 100, 1), Recorder())
    while engine.step():
        pass
    assert executor.passes == [(Kind.EXTEND, rows) for rows in (48, 48, 4)]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    executor = ScriptedExecutor(capacities=WIDE)
    engine = engine_for(executor)
    long, short = Recorder(), Recorder()
    engine.submit(Request((1,) * 500, 1), long)
    engine.step()
    engine.submit(Request((2,) * 16, 1), short)
    engine.step()
    assert short.ids and not long.ids
    assert executor.passes == [(Kind.EXTEND, 32), (Kind.EXTEND, 32)]
