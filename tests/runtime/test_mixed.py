"""Prefill passes that carry the lanes which decode: nobody stands still, and texts are those that they are alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Outcome, Rows
from tandem.runtime.meter import Plain
from tandem.runtime.request import FinishReason, Penalties, Request, Sampling
from tests.drafted import BLOCK_KINDS, KINDS, answer, check, engine_over, requests
from tests.fake_recurrent import RecurrentExecutor
from tests.fake_routers import EvenRouter, FreePrices, RandomRouter
from tests.fake_taps import Tapped
from tests.fakes import Recorder, ScriptedExecutor, geometry
from tests.runtime.test_engine import check_kv, engine_for, guesses

COUNTED = Penalties(repetition=1.3, presence=0.5)
SAMPLED = Sampling(temperature=1.0, top_p=0.9, seed=3)


class Logged(ScriptedExecutor):
    """Keeps the rows of every pass of the target."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.log: list[Rows] = []

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        self.log.append(rows)
        return super().run(kind, rows)


def plain(executor: ScriptedExecutor, **options: object) -> Engine:
    options = {"router": EvenRouter(), "prices": FreePrices(), "drafters": None, **options}
    return Engine(executor, **options)  # type: ignore[arg-type]


def begun(engine: Engine, *requests: Request) -> list[Recorder]:
    """The sinks of requests that all decode."""
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while not all(sink.ids for sink in sinks):
        engine.step()
    return sinks


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


def test_what_is_counted() -> None:
    router, asked = EvenRouter(), list[str]()

    def heard_of(name: str) -> None:
        own = getattr(router, name)
        setattr(router, name, lambda *arguments: (asked.append(name), own(*arguments))[1])

    for name in ("choose", "settle", "passed", "rests", "wants_model"):
        heard_of(name)
    early, late = Request((1, 2), 30), Request((7,) * 30, 2)
    engine = engine_for(ScriptedExecutor(), [early, late], [Guess(2)], router=router)
    (first,) = begun(engine, early)
    engine.step()
    meter = engine.meter
    second, before, blocks, between = Recorder(), len(asked), len(first.blocks), meter.between.count
    plain_rounds = meter.rounds.values["plain"]
    engine.submit(late, second)
    engine.step()
    assert len(asked) == before > 0, "what a mixed pass takes tells a router of no round"
    assert len(first.blocks) == blocks + 1 and len(first.blocks[-1]) == 1 and second.ids
    assert meter.between.count == between + 1
    assert meter.rounds.values["plain"] == plain_rounds + 1 and meter.plain_rounds.values[Plain.MIXED] == 1
    while engine.step():
        pass
    for sink, length in ((first, 30), (second, 2)):
        assert sink.stats is not None and sink.stats.rounds + sink.stats.accepted == length - 1
    assert sum(meter.plain_rounds.values.values()) == meter.rounds.values["plain"]


class Clock:
    """Each pass takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_is_the_prompts_and_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    class Slow(ScriptedExecutor):
        def run(self, kind: Kind, rows: Rows) -> Outcome:
            clock.now += 1.0
            return super().run(kind, rows)

    for module in ("prefill", "round"):
        monkeypatch.setattr(f"tandem.runtime.{module}.perf_counter", clock)
    engine = plain(Slow())
    (early,) = begun(engine, Request((1, 2), 5))
    engine.step()
    late = Recorder()
    engine.submit(Request((7,) * 30, 1), late)
    while engine.step():
        pass
    assert early.stats is not None and late.stats is not None
    assert (early.stats.prefill_ms, early.stats.decode_ms) == (1000.0, 4000.0)
    assert (late.stats.prefill_ms, late.stats.decode_ms) == (1000.0, 0.0)


@pytest.mark.parametrize("penalties", [Penalties(), COUNTED])
def test_a_device_draws_in_mixed_passes_too(penalties: Penalties) -> None:
    executor = Logged(capacities=geometry(draws=True))
    engine = plain(executor, prefill_chunk=4)
    asked = [Request((1, 2), 30, SAMPLED, penalties=penalties), Request((3, 4), 30)]
    sinks = begun(engine, *asked)
    late = Recorder()
    engine.submit(Request((7,) * 40, 3, SAMPLED), late)
    while engine.step():
        pass
    mixed = [rows for rows in executor.log if len(set(rows.lane)) == 3 and len(rows.token) > 3]
    assert len(mixed) == 10 and all(rows.wishes is not None for rows in mixed)
    # The first token of each of the two that are sampled is the host's, all others the device's.
    assert executor.draws.drawn == 29 + 2
    wanted = [*asked, Request((7,) * 40, 3, SAMPLED)]
    assert [sink.ids for sink in [*sinks, late]] == [answer(request) for request in wanted]


def test_the_host_draws_where_a_pass_has_more_outputs_than_a_device_takes() -> None:
    executor = Logged(capacities=geometry(draws=True, max_rows=80, max_outputs=80, context_length=192))
    engine = plain(executor)
    request = Request((1, 2), 30, SAMPLED, penalties=COUNTED)
    (sink,) = begun(engine, request)
    engine.step()
    late = Recorder()
    engine.submit(Request((7,) * 60, 2, prompt_logprobs=1), late)
    first = len(executor.log)
    while engine.step():
        pass
    assert [len(rows.output_row) > 32 for rows in executor.log[first : first + 2]] == [True, False]
    assert [rows.wishes is None for rows in executor.log[first : first + 2]] == [True, False]
    assert sink.ids == answer(request)


def test_a_drafter_that_rests_hears_of_those_tokens_later() -> None:
    class Resting(EvenRouter):
        def rests(self, lane: int, context: int) -> int:
            return 3

    told: list[Sequence[int]] = []

    class Listening(ScriptedDrafter):
        def observe(self, tokens: Sequence[int]) -> None:
            told.append(list(tokens))
            super().observe(tokens)

    request = Request((1, 2), 20)
    engine = plain(
        ScriptedExecutor(),
        router=Resting(),
        drafters=lambda: Listening({request.prompt: answer(request)}, [], geometry().vocab_size),
    )
    (sink,) = begun(engine, request)
    engine.step()
    engine.submit(Request((7,) * 80, 1, speculate=False), Recorder())
    while engine.step():
        pass
    assert [token for tokens in told for token in tokens] == sink.ids == answer(request)
    assert len(told) < 12


def test_a_cancel_within_the_pass_and_a_stop_end_only_their_lane() -> None:
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
