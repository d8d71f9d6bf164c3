"""A block drafter that lies, fails or gives no lattice costs its lanes its drafts, and nothing else."""

from __future__ import annotations

import logging
import math
from itertools import count

import pytest

from tandem.keys import Kind
from tandem.runtime.checks.forced import FixedWidth
from tandem.runtime.drafters.block import BlockDrafter
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tandem.runtime.meter import Lost
from tandem.runtime.request import Request
from tests.drafted import BLOCK_KINDS, VOCAB, check, engine_over, serve
from tests.fake_blocks import TOP, BlockExecutor, Manner, RecurrentBlockExecutor
from tests.fake_taps import Spoil
from tests.fakes import Recorder

MANNERS: list[Manner] = ["perfect", "listed", "random", "wrong", "astray"]


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("manner", MANNERS)
def test_texts_are_plain_at_every_width(manner: Manner, shape: str) -> None:
    for width in range(1, 33):
        lanes, kind = 1 + width % 4, BLOCK_KINDS[width // 4 % 2]
        requests = [Request((n, width % VOCAB, 5), 20 + n) for n in range(lanes)]
        executor = kind(rows=16, manner=manner)
        engine = engine_over(executor, router=FixedWidth(max(width, lanes), shape), max_lanes=lanes)
        check(engine, executor, requests, serve(engine, *requests))
        assert engine.meter.drafted_by.values.get("block", 0) > 0 or width <= lanes


def test_a_state_that_is_put_back_is_drafted_over_as_before() -> None:
    executor, request, sink = RecurrentBlockExecutor(manner="listed"), Request((1, 2, 3), 40), Recorder()
    engine = engine_over(executor)
    engine.submit(request, sink)
    while engine.step():
        for lane in engine._lanes:
            slot = engine._slots.table[lane.index]
            kept = executor.save(slot, lane.kv_length)
            executor._states[slot] = b"astray"
            executor.restore(slot, kept)
    check(engine, executor, [request], [sink])
    assert engine.meter.accepted_by.values["block"] > 10


def spoilt(field: str, value: float, place: int = -1) -> Spoil:
    def spoil(rows: DraftRows, outcome: DraftOutcome) -> None:
        if 0 in rows.lane and len(outcome.token):
            slots = len(outcome.token) // len(set(rows.lane))
            getattr(outcome, field)[:slots].reshape(-1)[place] = value

    return spoil


SPOILT = {
    "NaN score": spoilt("score", math.nan),
    "NaN score of the first slot": spoilt("score", math.nan, 0),
    "infinite score": spoilt("score", math.inf),
    "score of nothing": spoilt("score", -math.inf),
    "id below the vocabulary": spoilt("token", -1),
    "id above the vocabulary": spoilt("token", VOCAB),
    "walk out of the slot": spoilt("walk", TOP),
    "walk below the slot": spoilt("walk", -1, 0),
    "walk far out": spoilt("walk", 2**31 - 1),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_no_lattice_costs_its_lane_the_model(what: str, caplog: pytest.LogCaptureFixture) -> None:
    executor = BlockExecutor(spoil=SPOILT[what])
    engine, requests = engine_over(executor), [Request((1, 2, 3), 20), Request((4, 5), 20)]
    sinks = serve(engine, *requests)
    check(engine, executor, requests, sinks)
    assert engine.meter.lost.values[Lost.FAILED] == 1
    assert [sink.stats.drafted > 0 for sink in sinks if sink.stats] == [False, True]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no guess" in caplog.text


def test_a_fault_in_a_slot_that_is_not_needed_is_one_all_the_same() -> None:
    executor, request = BlockExecutor(spoil=spoilt("score", math.nan)), Request((1, 2, 3), 3)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert engine.meter.lost.values[Lost.FAILED] == 1


def test_scores_far_apart_are_sound() -> None:
    executor, request = BlockExecutor(spoil=spoilt("score", -3e38)), Request((1, 2, 3), 21)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert engine.meter.lost.values[Lost.FAILED] == 0 and engine.meter.accepted_by.values["block"] >= 15


@pytest.mark.parametrize("kind", [Kind.DRAFT, Kind.SYNC])
def test_a_pass_that_fails_costs_its_lanes_the_model(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    def fail(rows: DraftRows, outcome: DraftOutcome) -> None:
        if bool(rows.output_row) == (kind is Kind.DRAFT):
            raise RuntimeError("the drafter is gone")

    requests = [Request((1, 2, 3) * 15, 20), Request((4, 5), 20)]
    executor = BlockExecutor(ring=45, spoil=fail)
    engine = engine_over(executor, max_lanes=1, drafters=lookup_drafters())
    check(engine, executor, requests, serve(engine, *requests))
    assert engine.meter.lost.values[Lost.FAILED] == 2
    assert "the drafter is gone" in caplog.text
    assert engine.meter.drafted_by.values.get("local"), "the other drafter goes on"


def test_an_outcome_without_a_lattice_is_a_fault() -> None:
    def spoil(rows: DraftRows, outcome: DraftOutcome) -> None:
        outcome.score = None

    executor, request = BlockExecutor(spoil=spoil), Request((1, 2, 3), 20)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert engine.meter.lost.values[Lost.FAILED] == 1


@pytest.mark.parametrize("method", ["propose", "sync", "observe"])
def test_an_exception_of_the_lanes_own_drafter_costs_it_the_model(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, sound = count(), getattr(BlockDrafter, method)

    def fail(self: BlockDrafter, *args: object) -> object:
        if next(calls) == 5:
            raise ValueError("unforeseen")
        return sound(self, *args)

    monkeypatch.setattr(BlockDrafter, method, fail)
    executor, requests = BlockExecutor(), [Request((1, 2, 3), 40), Request((4, 5), 40)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    assert engine.meter.lost.values[Lost.FAILED] == 1
