"""How prompts share the passes that bring them in: evenly, and no pass for longer than a few steps."""

from __future__ import annotations

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Entry
from tandem.runtime.prefill import ALONE, IN_COMPANY
from tandem.runtime.request import Request
from tests.fake_routers import EvenRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry

WIDE = geometry(context_length=2048, max_rows=256)
STEP = {"1": 10.0, "256": 265.0}
"""A row more costs a millisecond more, so 32 rows cost 41: alone 71 may be, in company 51."""


def engine_for(executor: ScriptedExecutor) -> Engine:
    return Engine(executor, drafters=None, router=EvenRouter(), prices=PriceModel({"1024": {"extend": STEP}}))


def test_a_pass_costs_no_more_than_a_few_steps() -> None:
    executor = ScriptedExecutor(capacities=WIDE)
    engine = engine_for(executor)
    engine.submit(Request((1,) * 100, 1), Recorder())
    while engine.step():
        pass
    assert executor.passes == [(Kind.EXTEND, rows) for rows in (56, 44)]
    assert 10 + 55 <= ALONE * (10 + 31) < 10 + 63


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
    assert executor.passes == [(Kind.EXTEND, 56), (Kind.EXTEND, 40)]
    assert 10 + 39 <= IN_COMPANY * (10 + 31) < 10 + 47
