"""Choices of one prompt: its whole pages are brought in once, and each text is what it is alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Request, Sampling, Ticket
from tests.fake_guide import Remainders
from tests.fake_recurrent import RecurrentExecutor, state_of
from tests.fake_routers import EvenRouter, FreePrices, RandomRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry, marks, plain_text
from tests.penalties_reference import penalties

VOCAB, CONTEXT, PAGE = geometry().vocab_size, geometry().context_length, geometry().page_tokens
KINDS = [ScriptedExecutor, RecurrentExecutor]
PROMPT = tuple(range(20))
"""Two whole pages and four tokens more."""


def choices(request: Request, count: int) -> list[Request]:
    """`request` with a seed for each."""
    return [replace(request, sampling=replace(request.sampling, seed=seed)) for seed in range(count)]


def answer(request: Request) -> list[int]:
    return plain_text(request, VOCAB, CONTEXT)


def engine_for(executor: ScriptedExecutor, schedule: Sequence[Guess] = (), **options: object) -> Engine:
    """An engine whose drafters know the greedy answers to all prompts."""
    options = {"router": EvenRouter(), "prices": FreePrices(), "drafters": None, **options}
    if schedule:
        options["drafters"] = lambda: ScriptedDrafter({PROMPT: answer(Request(PROMPT, 40))}, schedule, VOCAB)
    return Engine(executor, **options)  # type: ignore[arg-type]


def submit(engine: Engine, requests: Sequence[Request]) -> tuple[list[Recorder], list[Ticket]]:
    sinks = [Recorder() for _ in requests]
    return sinks, engine.submit_all(list(zip(requests, sinks, strict=True)))


def step(engine: Engine, executor: ScriptedExecutor) -> bool:
    """One step, behind which all that a lane has committed is as if it had been alone."""
    busy = engine.step()
    for lane in engine._lanes:
        held = executor.kv(engine._pages.table[lane.index].tolist(), lane.kv_length)
        assert held == b"".join(marks(lane.ids[: lane.kv_length]))
        if executor.num_slots and lane.kv_length:
            state = executor.save(engine._slots.table[lane.index], lane.kv_length).state
            assert state.tobytes() == state_of(lane.ids[: lane.kv_length])
    return busy


def drained(engine: Engine, executor: ScriptedExecutor) -> None:
    """Serves what is there, and finds that nothing is kept."""
    while step(engine, executor):
        pass
    assert engine.num_free_pages == executor.num_pages and engine.num_free_slots == executor.num_slots
    assert not engine._siblings._families and not engine._siblings._open


requests_ = st.builds(
    Request,
    # Around the borders of pages (8) and chunks (5, 16).
    prompt=st.sampled_from([1, 7, 8, 9, 15, 16, 17, 18, 31, 33, 48, 90]).map(lambda n: (PROMPT * 5)[:n]),
    max_tokens=st.integers(0, 20),
    sampling=st.sampled_from([Sampling(), Sampling(1.0), Sampling(2.0, 0.9)]),
    stop_ids=st.sampled_from([frozenset(), frozenset({3, 11})]),
    speculate=st.sampled_from([True, True, False]),
    penalties=penalties(),
    guides=st.sampled_from([(), (Remainders,)]),
    logprobs=st.sampled_from([None, 1]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
families = st.tuples(
    requests_, st.integers(1, 5), st.integers(0, 12), st.dictionaries(st.integers(0, 4), st.integers(0, 14))
)


@settings(max_examples=200)
@given(
    asked=st.lists(families, min_size=1, max_size=3),
    schedule=st.lists(st.builds(Guess, st.integers(0, 6), st.integers(0, 4), st.integers(0, 5)), max_size=5),
    num_lanes=st.integers(1, 4),
    chunk=st.sampled_from([1, 5, 16, 40]),
    num_pages=st.sampled_from([16, 20, 40]),
    seed=st.none() | st.integers(0, 999),
    kind=st.sampled_from(KINDS),
    draws=st.booleans(),
)
def test_every_choice_is_what_it_is_alone(
    asked: list[tuple[Request, int, int, dict[int, int]]],
    schedule: list[Guess],
    num_lanes: int,
    chunk: int,
    num_pages: int,
    seed: int | None,
    kind: type[ScriptedExecutor],
    draws: bool,
) -> None:
    """Families of any size that come at any step, of which any choice is cancelled any time later."""
    executor = kind(num_pages=num_pages, capacities=geometry(draws=draws))
    router = EvenRouter() if seed is None else RandomRouter(seed)
    engine = engine_for(executor, schedule, max_lanes=num_lanes, prefill_chunk=chunk, router=router)
    served = dict[int, tuple[list[Recorder], list[Ticket]]]()
    for turn in range(30):
        for number, (request, count, start, cancels) in enumerate(asked):
            if turn == start:
                served[number] = submit(engine, choices(request, count))
            for choice, after in cancels.items():
                if choice < count and turn == start + after:
                    engine.cancel(served[number][1][choice])
        step(engine, executor)
    drained(engine, executor)
    for number, (request, count, _, cancels) in enumerate(asked):
        for choice, (one, sink) in enumerate(zip(choices(request, count), served[number][0], strict=True)):
            whole = answer(one)
            assert sink.ids == (whole[: len(sink.ids)] if sink.reason is FinishReason.CANCELLED else whole)
            assert sink.reason is not FinishReason.CANCELLED or choice in cancels


@pytest.mark.parametrize("kind", KINDS)
def test_the_pages_of_a_prompt_come_in_once(kind: type[ScriptedExecutor]) -> None:
    executor = kind()
    engine = engine_for(executor)
    sinks, _ = submit(engine, choices(Request(PROMPT, 6, Sampling(1.0)), 4))
    step(engine, executor)
    # 20 + 6 ids and what a verify writes behind them take 8 pages of 8, of which two are shared.
    assert -(-(26 + MAX_TREE_ROWS) // PAGE) == 8
    assert executor.num_pages - engine.num_free_pages == 8 + 3 * (8 - 2)
    drained(engine, executor)
    assert executor.passes == [(Kind.EXTEND, 16), (Kind.EXTEND, 4 * 4), *[(Kind.EXTEND, 4)] * 5]
    assert [sink.ids for sink in sinks] == [answer(one) for one in choices(Request(PROMPT, 6, Sampling(1.0)), 4)]
    assert engine.meter.prefix_queries.value == 4 * 20 and engine.meter.prefix_hits.value == 3 * 16


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_that_comes_later_has_it_at_once(kind: type[ScriptedExecutor]) -> None:
    """Two lanes: the third choice has that of the first, while the second goes on."""
    executor = kind()
    engine = engine_for(executor, max_lanes=2)
    first, second, third = choices(Request(PROMPT, 3), 3)
    sinks, _ = submit(engine, [first, replace(second, max_tokens=30), replace(third, max_tokens=4)])
    drained(engine, executor)
    assert executor.passes[:4] == [(Kind.EXTEND, 16), (Kind.EXTEND, 8), (Kind.EXTEND, 2), (Kind.EXTEND, 2)]
    assert executor.passes[4][1] in (4, 5), "what is left of the third's prompt, and maybe a step of the second"
    assert [len(sink.ids) for sink in sinks] == [3, 30, 4] and engine.meter.prefix_hits.value == 2 * 16


def test_a_choice_that_finds_nobody_begins_anew() -> None:
    for max_lanes in (1, 2):
        executor = RecurrentExecutor()
        engine = engine_for(executor, max_lanes=max_lanes)
        submit(engine, choices(Request(PROMPT, 3), 1 + max_lanes))
        drained(engine, executor)
        assert engine.meter.prefix_hits.value == 16 * (max_lanes - 1)
        prompts = [rows for _, rows in executor.passes if rows > 2]
        assert prompts == ([20, 20] if max_lanes == 1 else [16, 8, 20]), "and without a halt where there is one lane"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [1, 2, 3])
def test_when_the_first_is_cancelled_the_next_takes_over(kind: type[ScriptedExecutor], after: int) -> None:
    executor = kind()
    engine = engine_for(executor, prefill_chunk=5)
    requests = choices(Request(PROMPT, 5, Sampling(1.0)), 3)
    sinks, tickets = submit(engine, requests)
    for _ in range(after):
        step(engine, executor)
    engine.cancel(tickets[0])
    drained(engine, executor)
    # By fives up to 16, and all over again; then what is left of two prompts.
    assert [rows for _, rows in executor.passes[: after + 5]] == [5] * after + [5, 5, 5, 1, 8]
    assert sinks[0].ids == [] and [sink.ids for sink in sinks[1:]] == [answer(one) for one in requests[1:]]


def test_a_state_is_kept_only_as_long_as_somebody_may_want_it() -> None:
    executor = RecurrentExecutor()
    engine = engine_for(executor, max_lanes=2)
    _, tickets = submit(engine, choices(Request(PROMPT, 30), 4))
    (family,) = set(engine._siblings._families.values())
    step(engine, executor)
    assert family.state is None, "not there yet"
    step(engine, executor)
    assert family.state is not None and family.state.position == 16
    engine.cancel(tickets[2])
    step(engine, executor)
    assert family.state is not None, "one still waits for a lane"
    engine.cancel(tickets[3])
    step(engine, executor)
    assert family.state is None
    drained(engine, executor)


def test_a_state_goes_with_the_pages_behind_which_it_stands() -> None:
    executor = RecurrentExecutor()
    engine = engine_for(executor, max_lanes=2)
    sinks, tickets = submit(engine, choices(Request(PROMPT, 30), 4))
    (family,) = set(engine._siblings._families.values())
    for _ in range(3):
        step(engine, executor)
    assert family.state is not None
    for ticket in tickets[:2]:
        engine.cancel(ticket)
    step(engine, executor)
    assert family.state is None and engine.num_running == 2, "the third brings the prompt in anew"
    drained(engine, executor)
    assert engine.meter.prefix_hits.value == 2 * 16 and [len(sink.ids) for sink in sinks[2:]] == [30, 30]


def test_who_does_not_share() -> None:
    """Prompts of up to a page, those that are measured, different ones, and those that came apart."""
    executor = ScriptedExecutor()
    engine = engine_for(executor)
    for requests in (
        choices(Request(PROMPT[:PAGE], 2), 3),
        choices(Request(PROMPT, 2, prompt_logprobs=0), 3),
        [Request(PROMPT[n:], 2) for n in range(3)],
    ):
        submit(engine, requests)
        drained(engine, executor)
    for request in choices(Request(PROMPT, 2), 3):
        engine.submit(request, Recorder())
    drained(engine, executor)
    assert engine.meter.prefix_hits.value == 0
    submit(engine, choices(Request(PROMPT[: PAGE + 1], 2), 2))
    drained(engine, executor)
    assert engine.meter.prefix_hits.value == PAGE


def test_a_pool_that_holds_one_and_a_half_serves_two_at_once() -> None:
    """What is shared is asked of the pool once."""
    request = Request((PROMPT * 5)[:81], 3)
    whole, shared = -(-(84 + MAX_TREE_ROWS) // PAGE), 80 // PAGE
    executor = ScriptedExecutor(num_pages=2 * whole - shared)
    engine = engine_for(executor)
    submit(engine, choices(request, 3))
    step(engine, executor)
    assert (engine.num_running, engine.num_waiting, engine.num_free_pages) == (2, 1, 0)
    drained(engine, executor)


def test_a_pass_that_fails_ends_all_choices() -> None:
    engine = engine_for(ScriptedExecutor(fail_after=1))
    sinks, _ = submit(engine, choices(Request(PROMPT, 5), 6))
    engine.step()
    with pytest.raises(RuntimeError):
        engine.step()
    assert {sink.reason for sink in sinks} == {FinishReason.ERROR} and not engine._siblings._families
