"""A model that lies, fails or gives no guess costs its lanes its drafts, and nothing else."""

from __future__ import annotations

import logging
import math
from itertools import count
from typing import Any, ClassVar

import pytest

from tandem.keys import Kind
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.mtp import MtpDrafter
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tandem.runtime.meter import Lost
from tandem.runtime.request import Request
from tandem.tree import DraftTree
from tests.drafted import VOCAB, check, engine_over, serve
from tests.fake_drafting import DraftingExecutor
from tests.fake_routers import EvenRouter
from tests.fake_taps import Spoil


def spoilt(field: str, value: float) -> Spoil:
    def spoil(rows: DraftRows, outcome: DraftOutcome) -> None:
        if 0 in rows.lane and len(outcome.token):
            getattr(outcome, field).reshape(len(outcome.token), -1)[0, -1] = value

    return spoil


SPOILT = {
    "NaN logit": spoilt("logit", math.nan),
    "NaN sum": spoilt("lse", math.nan),
    "infinite sum": spoilt("lse", math.inf),
    "no sum": spoilt("lse", -math.inf),
    "infinite logit": spoilt("logit", math.inf),
    "logit above the sum": spoilt("logit", 3.1),
    "id below the vocabulary": spoilt("token", -1),
    "id above the vocabulary": spoilt("token", VOCAB),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_no_guess_costs_its_lane_the_model(what: str, caplog: pytest.LogCaptureFixture) -> None:
    executor = DraftingExecutor(accuracy=1.0, spoil=SPOILT[what])
    engine, requests = engine_over(executor), [Request((1, 2, 3), 20), Request((4, 5), 20)]
    sinks = serve(engine, *requests)
    check(engine, executor, requests, sinks)
    assert engine.meter.lost.values[Lost.FAILED] == 1
    assert [sink.stats.drafted > 0 for sink in sinks if sink.stats] == [False, True]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no guess" in caplog.text


def test_a_router_hears_what_a_model_took_that_guessed_nothing() -> None:
    class Hearing(EvenRouter):
        heard: ClassVar[list[float]] = []

        def choose(self, candidates: list[list[DraftTree]], *more: Any) -> list[DraftTree]:
            if not any(candidates):
                self.heard.append(more[-1]["mtp"])
            return super().choose(candidates, *more)

    executor, request = DraftingExecutor(accuracy=1.0, spoil=SPOILT["NaN logit"]), Request((1, 2, 3), 20)
    engine = engine_over(executor, router=(router := Hearing()))
    check(engine, executor, [request], serve(engine, request))
    assert len(router.heard) == 1 and router.heard[0] > 0


def test_a_second_choice_that_is_impossible_is_none() -> None:
    executor = DraftingExecutor(accuracy=1.0, spoil=spoilt("logit", -math.inf))
    engine, request = engine_over(executor), Request((1, 2, 3), 21)
    (sink,) = serve(engine, request)
    check(engine, executor, [request], [sink])
    assert engine.meter.drafted_by.values == {"mtp": 16} == engine.meter.accepted_by.values


@pytest.mark.parametrize("kind", [Kind.DRAFT, Kind.SYNC])
def test_a_pass_that_fails_costs_its_lanes_the_model(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    def fail(rows: DraftRows, outcome: DraftOutcome) -> None:
        if bool(rows.output_row) == (kind is Kind.DRAFT):
            raise RuntimeError("the drafter is gone")

    executor = DraftingExecutor(accuracy=1.0, ring=45, spoil=fail)
    requests = [Request((1, 2, 3) * 15, 20), Request((4, 5), 20)]
    engine = engine_over(executor, max_lanes=1, drafters=lookup_drafters())
    check(engine, executor, requests, serve(engine, *requests))
    assert engine.meter.lost.values[Lost.FAILED] == (2 if kind is Kind.DRAFT else 1)
    assert "the drafter is gone" in caplog.text
    assert engine.meter.drafted_by.values.get("local"), "the other drafter goes on"


def test_a_lane_is_lost_once() -> None:
    """One lane's first guess is none, and the pass after that fails for the other."""

    def spoil(rows: DraftRows, outcome: DraftOutcome) -> None:
        if len(rows.token) > 1:
            outcome.lse[0] = math.nan
        else:
            raise RuntimeError("the drafter is gone")

    executor, requests = DraftingExecutor(accuracy=1.0, spoil=spoil), [Request((1, 2, 3), 20), Request((4, 5), 20)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    assert engine.meter.lost.values[Lost.FAILED] == 2


def test_a_reading_pass_that_fails_costs_nobody_else_the_model() -> None:
    def fail(rows: DraftRows, outcome: DraftOutcome) -> None:
        if not rows.output_row:
            raise RuntimeError("the drafter is gone")

    executor, requests = (
        DraftingExecutor(accuracy=1.0, ring=45, spoil=fail),
        [Request((4, 5), 40), Request((1,) * 60, 9)],
    )
    engine = engine_over(executor)
    sinks = serve(engine, *requests)
    check(engine, executor, requests, sinks)
    assert engine.meter.lost.values[Lost.FAILED] == 1
    assert [sink.stats.accepted > 0 for sink in sinks if sink.stats] == [True, False]


@pytest.mark.parametrize("method", ["propose", "sync", "observe"])
def test_an_exception_of_the_lanes_own_drafter_costs_it_the_model(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, sound = count(), getattr(MtpDrafter, method)

    def fail(self: MtpDrafter, *args: object) -> object:
        if next(calls) == 5:
            raise ValueError("unforeseen")
        return sound(self, *args)

    monkeypatch.setattr(MtpDrafter, method, fail)
    executor, requests = DraftingExecutor(accuracy=1.0), [Request((1, 2, 3), 40), Request((4, 5), 40)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    assert engine.meter.lost.values[Lost.FAILED] == 1
