"""Prefill passes that carry the lanes which decode: nobody stands still, and texts are those that they are alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.runtime.drafters.scripted import Guess
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Request
from tests.drafted import BLOCK_KINDS, KINDS, answer, check, engine_over, requests
from tests.fake_recurrent import RecurrentExecutor
from tests.fake_routers import RandomRouter
from tests.fake_taps import Tapped
from tests.fakes import Recorder, ScriptedExecutor, geometry
from tests.mixed import plain
from tests.runtime.test_engine import check_kv, engine_for, guesses


def moved(engine: Engine) -> Callable[[], None]:
    """What checks, behind a step, that it brought every lane that decoded before a token."""
    before = {lane: len(lane.ids) for lane in engine._lanes if lane.decoding and not lane.ticket.cancelled}

    def check() -> None:
        assert all(len(lane.ids) > length for lane, length in before.items())

    return check


asked_ = st.lists(
    st.tuples(
        requests([1, 2, 7, 8, 9, 33, 60, 90], prompt_logprobs=st.sampled_from([None, None, 1])), st.integers(0, 9)
    ),
    min_size=2,
    max_size=6,
)


def together(engine: Engine, asked: Sequence[tuple[Request, int]], check: Callable[[], None]) -> list[Recorder]:
    """Requests that come at their steps; every step brings each lane that decodes a token."""
    sinks, turn, waiting, busy = [Recorder() for _ in asked], 0, len(asked), True
    while busy or waiting:
        for (request, start), sink in zip(asked, sinks, strict=True):
            if start == turn:
                engine.submit(request, sink)
                waiting -= 1
        went_on = moved(engine)
        busy = engine.step()
        went_on()
        check()
        turn += 1
    return sinks


def as_alone(asked: Sequence[tuple[Request, int]], sinks: Sequence[Recorder], alone: Callable[[], Engine]) -> None:
    """Ids, logprobs, those of the prompt and ends are those that each request has alone without drafts."""
    for (request, _), sink in zip(asked, sinks, strict=True):
        engine, wanted = alone(), Recorder()
        engine.submit(request, wanted)
        while engine.step():
            pass
        assert sink.ids == wanted.ids == answer(request)[: request.max_tokens]
        assert (sink.logprobs, sink.prompt, sink.reason) == (wanted.logprobs, wanted.prompt, wanted.reason)


@settings(max_examples=80)
@given(
    asked=asked_,
    schedule=st.lists(guesses, max_size=5),
    chunk=st.sampled_from([1, 5, 16, 40]),
    seed=st.integers(0, 999),
    kind=st.sampled_from([ScriptedExecutor, RecurrentExecutor]),
    draws=st.booleans(),
)
def test_every_step_brings_each_lane_a_token_and_changes_none(
    asked: list[tuple[Request, int]],
    schedule: list[Guess],
    chunk: int,
    seed: int,
    kind: type[ScriptedExecutor],
    draws: bool,
) -> None:
    executor = kind(capacities=geometry(draws=draws))
    engine = engine_for(
        executor, [request for request, _ in asked], schedule, router=RandomRouter(seed), prefill_chunk=chunk
    )
    sinks = together(engine, asked, lambda: check_kv(engine, executor))
    as_alone(asked, sinks, lambda: plain(kind(), max_lanes=1))


@settings(max_examples=80)
@given(
    asked=asked_,
    chunk=st.sampled_from([1, 5, 16, 40]),
    ring=st.sampled_from([3, 40, 150]),
    seed=st.integers(0, 999),
    kind=st.sampled_from([*KINDS, *BLOCK_KINDS]),
)
def test_models_that_draft_find_every_row(
    asked: list[tuple[Request, int]], chunk: int, ring: int, seed: int, kind: type[Tapped]
) -> None:
    executor = kind(ring=ring)
    engine = engine_over(executor, router=RandomRouter(seed), prefill_chunk=chunk)
    sinks = together(engine, asked, lambda: None)
    check(engine, executor, [], [])
    as_alone(asked, sinks, lambda: plain(ScriptedExecutor(), max_lanes=1))


def test_a_cancel_and_a_stop_beside_prompts_end_only_their_lane() -> None:
    engine = plain(ScriptedExecutor(), prefill_chunk=4)
    request = Request((1, 2), 30)
    stopping, kept, hung_up = Recorder(wants=4), Recorder(), Recorder()
    engine.submit(request, stopping)
    engine.submit(request, kept)
    ticket = engine.submit(request, hung_up)
    while not kept.ids:
        engine.step()
    late = Recorder()
    engine.submit(Request((7,) * 60, 2), late)
    for _ in range(3):
        engine.step()
    engine.cancel(ticket)
    while engine.step():
        pass
    assert stopping.reason is FinishReason.STOP and stopping.ids == answer(request)[:4]
    assert hung_up.reason is FinishReason.CANCELLED and hung_up.ids == answer(request)[: len(hung_up.ids)]
    assert kept.ids == answer(request) and late.ids == answer(Request((7,) * 60, 2))
