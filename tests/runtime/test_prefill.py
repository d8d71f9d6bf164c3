"""How prompts share the passes that bring them in, with each other and with lanes that decode: evenly, and no pass for
longer than a few steps."""

from __future__ import annotations

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Entry
from tandem.runtime.prefill import ALONE, IN_COMPANY
from tandem.runtime.request import Request
from tests.drafted import answer
from tests.fake_routers import EvenRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry
from tests.mixed import Logged, begun, plain

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


def test_prompts_give_a_row_for_each_lane_that_decodes() -> None:
    executor = Logged()
    engine = plain(executor)
    sinks = begun(engine, Request((1, 2), 30), Request((3,), 30), Request((4, 5, 6), 30))
    engine.step()
    first, blocks = len(executor.passes), [len(sink.blocks) for sink in sinks]
    late = Recorder()
    engine.submit(Request((7,) * 80, 5), late)
    engine.step()
    (rows,) = executor.log[first:]
    assert executor.passes[first:] == [(Kind.EXTEND, 40)]
    assert list(rows.lane) == [0, 1, 2, *[3] * 37] and list(rows.output_row) == [0, 1, 2]
    assert [len(sink.blocks) for sink in sinks] == [count + 1 for count in blocks]
    while engine.step():
        pass
    # The rest of the prompt is 43 rows: 37 and 6, with a round between two passes.
    assert executor.passes[first : first + 5] == [(Kind.EXTEND, rows) for rows in (40, 3, 40, 3, 9)]
    assert [sink.ids for sink in [*sinks, late]] == [
        answer(request)
        for request in (Request((1, 2), 30), Request((3,), 30), Request((4, 5, 6), 30), Request((7,) * 80, 5))
    ]


def test_outputs_are_kept_for_lanes_that_decode() -> None:
    """Of 32 outputs two lanes that decode have two, a prompt that ends one, and the one that is measured the others."""
    executor = Logged()
    engine = plain(executor)
    begun(engine, Request((1, 2), 30), Request((3,), 30))
    measured, short, first = Recorder(), Recorder(), len(executor.log)
    engine.submit(Request((7,) * 80, 1, prompt_logprobs=0), measured)
    engine.submit(Request((5, 6), 1), short)
    while not short.ids:
        engine.step()
    rows = next(rows for rows in executor.log[first:] if len(set(rows.lane)) == 4)
    assert len(rows.output_row) == 32 and list(rows.lane).count(2) == 29
    while engine.step():
        pass
    assert len(measured.prompt) == 79


def test_a_long_text_beside_them_takes_no_more_rows_of_prompts() -> None:
    """A pass of 40 rows is too dear in a long context, which only the lane's own row has."""
    executor = Logged(capacities=geometry(context_length=4096, max_rows=40))
    cheap, dear = {"1": 1.0, "32": 2.0, "40": 2.1}, {"1": 9.0, "32": 90.0, "40": 99.0}
    engine = plain(executor, prices=PriceModel({"1024": {"extend": cheap}, "4096": {"extend": dear}}))
    begun(engine, Request((1,) * 3000, 40))
    late, first = Recorder(), len(executor.log)
    engine.submit(Request((2,) * 100, 1), late)
    while not late.ids:
        engine.step()
    assert max(len(rows.token) for rows in executor.log[first:]) == 40
