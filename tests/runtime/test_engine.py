"""One arithmetic through the engine: whatever is drafted, batched, cancelled or reused, ids are the plain ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.errors import UsageError
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Request, Sampling
from tandem.runtime.router.staircut import StairCut
from tests.fake_guide import Remainders
from tests.fake_recurrent import RecurrentExecutor, state_of
from tests.fake_routers import EvenRouter, FreePrices, RandomRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry, marks, plain_text
from tests.penalties_reference import penalties

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length


def answer(request: Request) -> list[int]:
    return plain_text(request, VOCAB, CONTEXT)


def engine_for(
    executor: ScriptedExecutor,
    requests: Sequence[Request] = (),
    schedule: Sequence[Guess] = (),
    **options: object,
) -> Engine:
    """An engine whose drafters know the plain answers to `requests`."""
    answers = {request.prompt: answer(request) for request in requests}
    seeds = iter(range(10**6))
    options = {"router": EvenRouter(), "prices": FreePrices(), **options}
    return Engine(executor, drafters=lambda: ScriptedDrafter(answers, schedule, VOCAB, next(seeds)), **options)


def check_kv(engine: Engine, executor: ScriptedExecutor) -> None:
    """Every committed slot holds what a one-token-at-a-time run would have left there."""
    for lane in engine._lanes:
        held = executor.kv(engine._pages.table[lane.index], lane.kv_length)
        assert held == b"".join(marks(lane.ids[: lane.kv_length]))
        if executor.num_slots and lane.kv_length:
            snapshot = executor.save(engine._slots.table[lane.index], lane.kv_length)
            assert snapshot.state.tobytes() == state_of(lane.ids[: lane.kv_length])


def serve(engine: Engine, executor: ScriptedExecutor, *requests: Request) -> list[Recorder]:
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        check_kv(engine, executor)
    return sinks


guesses = st.builds(Guess, st.integers(0, 6), st.integers(0, 4), st.integers(0, 5))
samplings = st.one_of(
    st.just(Sampling()),
    st.builds(Sampling, st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([0.8, 1.0]), seed=st.integers(0, 99)),
)
requests_ = st.builds(
    Request,
    # Around the borders of pages (8), chunks (5, 16) and the context (96).
    prompt=st.sampled_from([1, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 48, 90, 95]).flatmap(
        lambda n: st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n).map(tuple)
    ),
    max_tokens=st.integers(1, 40),
    sampling=samplings,
    stop_ids=st.sampled_from([frozenset(), frozenset(), frozenset({3, 11})]),
    speculate=st.sampled_from([True, True, True, False]),
    penalties=penalties(),
    guides=st.sampled_from([(), (), (Remainders,), (Remainders.lax,)]),
)


@settings(max_examples=150)
@given(
    asked=st.lists(st.tuples(requests_, st.integers(0, 8), st.none() | st.integers(0, 20)), min_size=1, max_size=6),
    schedule=st.lists(guesses, max_size=5),
    num_lanes=st.integers(1, 4),
    chunk=st.sampled_from([1, 5, 16, 40]),
    num_pages=st.sampled_from([16, 40]),
    seed=st.none() | st.integers(0, 999),
    kind=st.sampled_from([ScriptedExecutor, RecurrentExecutor]),
    draws=st.booleans(),
)
def test_any_schedule_gives_the_plain_ids(
    asked: list[tuple[Request, int, int | None]],
    schedule: list[Guess],
    num_lanes: int,
    chunk: int,
    num_pages: int,
    seed: int | None,
    kind: type[ScriptedExecutor],
    draws: bool,
) -> None:
    executor = kind(num_pages=num_pages, capacities=geometry(draws=draws))
    engine = engine_for(
        executor,
        [request for request, _, _ in asked],
        schedule,
        router=StairCut(PriceModel()) if seed is None else RandomRouter(seed),
        max_lanes=num_lanes,
        prefill_chunk=chunk,
    )
    sinks = [Recorder() for _ in asked]
    tickets = {}
    busy, turn = True, 0
    while busy or len(tickets) < len(asked):
        for i, (request, start, _) in enumerate(asked):
            if start == turn:
                tickets[i] = engine.submit(request, sinks[i])
        for i, (_, start, cancelled_after) in enumerate(asked):
            if cancelled_after is not None and start + cancelled_after == turn:
                engine.cancel(tickets[i])
        busy = engine.step()
        check_kv(engine, executor)
        assert engine.num_running <= num_lanes
        turn += 1
    for (request, _, cancelled_after), sink in zip(asked, sinks, strict=True):
        whole = answer(request)
        assert sink.stats is not None and sink.stats.prompt_tokens == len(request.prompt)
        if sink.reason is FinishReason.CANCELLED:
            assert cancelled_after is not None
            assert sink.ids == whole[: len(sink.ids)]
            continue
        assert sink.ids == whole
        assert sink.stats.completion_tokens == len(whole)
        assert sink.stats.accepted <= sink.stats.drafted
        assert len(whole) == 1 + sink.stats.rounds + sink.stats.accepted
        assert sink.reason is (FinishReason.STOP if whole[-1] in request.stop_ids else FinishReason.LENGTH)
    assert engine.num_free_pages == num_pages and engine.num_running == engine.num_waiting == 0
    assert engine.num_free_slots == executor.num_slots


def test_bug_01_a_plain_round_after_accepted_drafts_reads_the_accepted_state() -> None:
    right = [Guess(3), Guess(), Guess(2), Guess(), Guess(), Guess(5)]
    request = Request(tuple(range(20)), 64)
    for branches in (0, 3):
        executor = ScriptedExecutor()
        schedule = [replace(guess, branches=branches if guess.right else 0) for guess in right]
        (sink,) = serve(engine_for(executor, [request], schedule), executor, request)
        assert sink.ids == answer(request)
        assert {kind for kind, _ in executor.passes[1:]} == {
            Kind.EXTEND,
            Kind.VERIFY_TREE if branches else Kind.VERIFY_CHAIN,
        }
        assert [len(block) for block in sink.blocks[1:7]] == [4, 1, 3, 1, 1, 6]


@pytest.mark.parametrize("num_slots", [1, 2, None])
def test_no_more_lanes_are_served_than_there_are_states(num_slots: int | None) -> None:
    executor = RecurrentExecutor(num_slots=num_slots)
    requests = [Request((n, 5, 6), 9) for n in range(6)]
    engine = engine_for(executor, requests, [Guess(2, 1), Guess()])
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    most = 0
    while engine.step():
        most = max(most, engine.num_running)
    assert most == (num_slots or 4) and [sink.ids for sink in sinks] == [answer(request) for request in requests]
    with pytest.raises(UsageError, match="max_lanes is 5; this bundle serves 1 to"):
        engine_for(executor, max_lanes=5)


def test_bug_08_wrong_drafts_leave_no_trace() -> None:
    request = Request((1, 2, 3), 33)
    for guess in (Guess(wrong=5), Guess(branches=6)):
        executor = ScriptedExecutor()
        (sink,) = serve(engine_for(executor, [request], [guess]), executor, request)
        assert sink.ids == answer(request)
        assert sink.stats is not None and (sink.stats.rounds, sink.stats.accepted) == (32, 0)


def test_bug_10_a_reused_lane_is_clean() -> None:
    chance = random.Random(10)
    first, second = Request(tuple(range(17)), 60), Request((5, 4, 3, 2, 1), 30)
    schedule = [Guess(3, 1, 2), Guess(0, 4), Guess(4)]
    executor = ScriptedExecutor(num_pages=16)
    engine = engine_for(executor, [first, second], schedule, max_lanes=1)
    for _ in range(50):
        aborted, sink = Recorder(), Recorder()
        ticket = engine.submit(first, aborted)
        for _ in range(chance.randint(1, 15)):
            engine.step()
        engine.cancel(ticket)
        engine.submit(second, sink)
        while engine.step():
            check_kv(engine, executor)
        assert aborted.reason is FinishReason.CANCELLED
        assert sink.ids == answer(second)


def test_rows_behind_a_text_touch_no_other_lane() -> None:
    long, short = Request((1, 2, 3), 60), Request(tuple(range(8)), 8)  # the second text ends with a page
    executor = ScriptedExecutor()
    sinks = serve(engine_for(executor, [long, short], [Guess(branches=15)]), executor, long, short)
    assert [sink.ids for sink in sinks] == [answer(long), answer(short)]


def test_bug_12_lanes_and_drafters_go_with_their_request() -> None:
    alive: list[int] = []

    class Counted(ScriptedDrafter):
        def begin(self, prompt: Sequence[int]) -> None:
            alive.append(1)
            super().begin(prompt)

        def __del__(self) -> None:
            alive.append(-1)

    request = Request((9, 8, 7), 12)
    answers = {request.prompt: answer(request)}
    executor = ScriptedExecutor()
    engine = Engine(
        executor, drafters=lambda: Counted(answers, [Guess(2)], VOCAB), prices=FreePrices(), router=EvenRouter()
    )
    for turn in range(100):
        sink = Recorder()
        ticket = engine.submit(request, sink)
        engine.step()
        engine.step()
        if turn % 2:
            engine.cancel(ticket)
        while engine.step():
            pass
        assert sink.reason is (FinishReason.CANCELLED if turn % 2 else FinishReason.LENGTH)
        assert sum(alive) == 0 and not engine.router.lanes and engine.num_free_pages == executor.num_pages


def test_bug_12_a_second_request_beside_a_speculating_one() -> None:
    first, second = Request((1, 2), 30), Request((3, 4, 5), 30)
    executor = ScriptedExecutor()
    engine = engine_for(executor, [first, second], [Guess(3, 2, 2)])
    early, late = Recorder(), Recorder()
    engine.submit(first, early)
    for _ in range(4):
        engine.step()
    engine.submit(second, late)
    while engine.step():
        check_kv(engine, executor)
    assert (early.ids, late.ids) == (answer(first), answer(second))


def test_bug_14_drafters_know_exactly_what_is_committed() -> None:
    request = Request((1, 2, 3), 40)
    executor = ScriptedExecutor()
    engine = engine_for(executor, [request], [Guess(right, 5 - right) for right in range(6)])
    engine.submit(request, Recorder())
    while engine.step():
        for lane in engine._lanes:
            assert isinstance(lane.drafter, ScriptedDrafter)
            assert (lane.drafter._length, lane.drafter._anchor) == (len(lane.ids), lane.ids[-1])


def test_bug_22_a_seed_gives_one_text_whatever_is_drafted() -> None:
    request = Request((4, 2), 20, Sampling(2.0, seed=42))
    texts = []
    for schedule in ([], [], [Guess(4)], [Guess(2, 3, 4)]):
        executor = ScriptedExecutor()
        texts.append(serve(engine_for(executor, [request], schedule), executor, request)[0].ids)
    assert all(text == answer(request) for text in texts)


def test_bug_23_no_seed_means_fresh_noise() -> None:
    executor, request = ScriptedExecutor(), Request((4, 2), 12, Sampling(1.0))
    sinks = serve(engine_for(executor), executor, *[request] * 8)
    assert len({tuple(sink.ids) for sink in sinks}) > 5


def test_the_shipped_router_and_lookup_drafter_speculate_and_give_the_plain_ids() -> None:
    def target(ids: tuple[int, ...]) -> int:
        return ids[-4] if len(ids) % 19 else ids[-1]  # a copy with a slip now and then

    requests = [Request(tuple(range(n, n + 4)) * 3, 50) for n in range(3)]
    texts = []
    for drafters in (None, lookup_drafters()):
        executor = ScriptedExecutor(target)
        # By the clock nothing pays here, as a pass takes no time.
        engine = Engine(executor, drafters=drafters, prices=PriceModel(), learn_cost=False)
        sinks = serve(engine, executor, *requests)
        texts.append([sink.ids for sink in sinks])
        assert all(len(sink.ids) == 50 for sink in sinks)
        accepted = sum(sink.stats.accepted for sink in sinks if sink.stats)
        assert accepted > 50 if drafters else accepted == 0
    assert texts[0] == texts[1]
