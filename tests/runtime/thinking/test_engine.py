"""Budgets through the engine: whatever is drafted, a block closes at its exact token and the ids are the plain ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.guide import GuideMaker
from tandem.runtime.request import FinishReason, Request, Sampling
from tandem.runtime.router.staircut import StairCut
from tandem.runtime.thinking.block import BlockReader, Tags, ThoughtCount
from tandem.runtime.thinking.guide import BUDGET, SOURCE, Closings, ThoughtsGuide
from tandem.runtime.thinking.watcher import Loop, Watcher
from tests.fake_recurrent import RecurrentExecutor
from tests.fake_routers import EvenRouter, FreePrices, RandomRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry
from tests.thinking_reference import BARE, USUAL, WORDS, thoughtful_text

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length
READER = BlockReader(Tags(), WORDS.__getitem__)
THOUGHT, TAG = 9, 0


def bounded(
    budget: int | None, watcher: bool = False, told: list[str] | None = None, in_thoughts: bool = False
) -> GuideMaker:
    """By the prompt's end, or `in_thoughts` whatever that is."""

    def make(prompt: Sequence[int], stop_ids: Collection[int]) -> ThoughtsGuide:
        closed = (lambda reason: None) if told is None else told.append
        watch = Watcher() if watcher else None
        begun = in_thoughts or READER.opened_by(prompt)
        return ThoughtsGuide(READER, begun, Closings(USUAL, BARE), budget=budget, watcher=watch, closed=closed)

    return make


def served(
    request: Request, executor: ScriptedExecutor, answers: Mapping[tuple[int, ...], Sequence[int]], *schedule: Guess
) -> Recorder:
    drafters = (lambda: ScriptedDrafter(answers, schedule, VOCAB)) if schedule else None
    engine = Engine(executor, drafters=drafters, prices=FreePrices(), router=EvenRouter())
    engine.submit(request, sink := Recorder())
    while engine.step():
        pass
    return sink


def reasoning(request: Request, ids: Sequence[int]) -> int:
    count = ThoughtCount(READER, request.in_thoughts or READER.opened_by(request.prompt))
    count.add(ids)
    return count.tokens


@settings(max_examples=100)
@given(
    asked=st.lists(
        st.tuples(
            st.sampled_from([(9, 1), (1, 8), (9, 10), tuple(range(20)), (*range(15), 1)]),
            st.integers(1, 40),
            st.sampled_from([Sampling(), Sampling(1.0, seed=4), Sampling(0.7, 0.9, 12, seed=5)]),
            st.sampled_from([0, 1, 2, 3, 5, 8]),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda one: one[0],
    ),
    schedule=st.lists(st.builds(Guess, st.integers(0, 8), st.integers(0, 4), st.integers(0, 5)), max_size=5),
    seed=st.none() | st.integers(0, 999),
    kind=st.sampled_from([ScriptedExecutor, RecurrentExecutor]),
)
def test_any_schedule_gives_the_plain_ids(
    asked: list[tuple[tuple[int, ...], int, Sampling, int]],
    schedule: list[Guess],
    seed: int | None,
    kind: type[ScriptedExecutor],
) -> None:
    requests = [
        Request(prompt, length, sampling, frozenset({22}), guides=(bounded(budget),))
        for prompt, length, sampling, budget in asked
    ]
    answers = {
        request.prompt: thoughtful_text(request, VOCAB, CONTEXT, budget)
        for request, (_, _, _, budget) in zip(requests, asked, strict=True)
    }
    router = StairCut(PriceModel()) if seed is None else RandomRouter(seed)
    engine = Engine(
        kind(), drafters=lambda: ScriptedDrafter(answers, schedule, VOCAB), prices=FreePrices(), router=router
    )
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        pass
    assert [sink.ids for sink in sinks] == [answers[request.prompt] for request in requests]


def thinking_for(num_thoughts: int) -> ScriptedExecutor:
    """A model that closes its block after so many thoughts, and then goes on with other letters."""

    def target(ids: tuple[int, ...]) -> int:
        if TAG in ids or 4 in ids:
            return 17 if len(ids) % 2 else 18
        return TAG if len(ids) - 2 >= num_thoughts else THOUGHT + (len(ids) * len(ids)) % 2

    return ScriptedExecutor(target, capacities=geometry(context_length=160))


@pytest.mark.parametrize("branches", [0, 2])
@pytest.mark.parametrize("offset", range(8))
def test_bug_43_a_budget_at_every_offset_of_an_accepted_block(offset: int, branches: int) -> None:
    """50 thoughts and the closing text, on and off, wherever in a block of 8 the fiftieth stands."""
    request = Request((9, 1), 90, guides=(bounded(50),))
    plain = served(request, thinking_for(1000), {})
    first = [Guess(offset - 1)] if offset > 1 else []  # moves the blocks of 8 along
    schedule = [*first, *[Guess(7, branches=branches)] * 40]
    drafted = served(request, thinking_for(1000), {request.prompt: plain.ids}, *schedule)
    assert drafted.ids == plain.ids
    assert plain.ids[50:56] == list(USUAL) and set(plain.ids[:50]) == {9, 10} and set(plain.ids[56:]) == {17, 18}
    assert reasoning(request, plain.ids) == 50 + 5, "the last token of the closing text stands behind the tag"
    blocks = [len(block) for block in drafted.blocks]
    assert max(blocks) == 8 and blocks[1 if first else 2] in (offset, 8)
    assert drafted.stats is not None and drafted.stats.rounds < 30


@pytest.mark.parametrize("num_thoughts", [49, 50, 51])
def test_a_block_that_closes_itself_just_before_its_budget_is_left_alone(num_thoughts: int) -> None:
    request = Request((9, 1), 80, guides=(bounded(50),))
    sink = served(request, thinking_for(num_thoughts), {})
    if num_thoughts < 50:
        assert sink.ids[num_thoughts] == TAG and reasoning(request, sink.ids) == num_thoughts + 1
    else:
        assert sink.ids[50:56] == list(USUAL)


def test_bug_39_no_more_reasoning_than_completion() -> None:
    """12 answers of 64 tokens at most, thoughts in all of them."""
    for budget in (None, 0, 10, 57, 58, 59, 60, 62, 63, 64, 65, 100):
        guides = () if budget is None else (bounded(budget),)
        request = Request((9, 1), 64, guides=guides)
        plain = served(request, thinking_for(1000), {})
        drafted = served(request, thinking_for(1000), {request.prompt: plain.ids}, Guess(7), Guess(3, 2))
        assert plain.ids == drafted.ids and len(plain.ids) == 64
        counts = [reasoning(request, sink.ids) for sink in (plain, drafted)]
        whole = 64 if budget is None else min(64, budget + 5 if budget else 2)
        assert counts == [whole, whole]


AMID = (9, 1, *[THOUGHT] * 40)
"""A prompt that leaves its block open behind thoughts, so many of one kind that a watcher would call them a loop."""


@pytest.mark.parametrize("branches", [0, 2])
@pytest.mark.parametrize("offset", range(8))
def test_an_answer_amid_thoughts_is_closed_behind_thoughts_of_its_own(offset: int, branches: int) -> None:
    """The prompt's 40 count for nothing: a budget of 20 ends at the answer's twentieth token, drafted or not."""
    request = Request(AMID, 40, guides=(bounded(20, in_thoughts=True),), in_thoughts=True)
    plain = served(request, thinking_for(1000), {})
    assert plain.ids[20:26] == list(USUAL) and set(plain.ids[:20]) == {9, 10} and set(plain.ids[26:]) == {17, 18}
    assert reasoning(request, plain.ids) == 20 + 5
    first = [Guess(offset - 1)] if offset > 1 else []
    schedule = [*first, *[Guess(7, branches=branches)] * 20]
    assert served(request, thinking_for(1000), {AMID: plain.ids}, *schedule).ids == plain.ids


def test_an_answer_amid_thoughts_that_goes_in_circles_is_closed() -> None:
    """A loop of the answer's own tokens: 128 of one kind, of which the prompt has 40 more."""
    told, executor = (
        list[str](),
        ScriptedExecutor(lambda ids: 17 if 4 in ids else THOUGHT, capacities=geometry(context_length=256)),
    )
    request = Request(AMID, 150, guides=(bounded(None, True, told, in_thoughts=True),), in_thoughts=True)
    sink = served(request, executor, {})
    assert sink.ids == [*[THOUGHT] * 128, *USUAL, *[17] * 16] and told == [Loop.PATTERN]


def test_a_closing_text_costs_no_round_a_token() -> None:
    request = Request((9, 1), 30, guides=(bounded(4),))
    plain = served(request, thinking_for(1000), {})
    executor = thinking_for(1000)
    engine = Engine(executor, drafters=lambda: ScriptedDrafter({}, [], VOCAB), prices=FreePrices(), router=EvenRouter())
    engine.submit(request, sink := Recorder())
    while engine.step():
        pass
    assert sink.ids == plain.ids and len(plain.blocks) == 30
    assert [len(block) for block in sink.blocks] == [1, 1, 1, 1, 7, *[1] * 19]
    assert engine.meter.accepted_by.values == {SOURCE: 6}
    alone = served(Request((9, 1), 30, guides=(bounded(4),), speculate=False), executor, {}, Guess(3))
    assert alone.ids == plain.ids and len(alone.blocks) == 30


def test_a_stop_in_the_thoughts_and_an_end_in_the_closing_text() -> None:
    stopped = served(Request((9, 1), 60, stop_ids=frozenset({10}), guides=(bounded(30),)), thinking_for(1000), {})
    assert stopped.reason is FinishReason.STOP and stopped.ids[-1] == 10 and len(stopped.ids) < 30
    for length in range(10, 18):
        request = Request((9, 1), length, guides=(bounded(10),))
        sink = served(request, thinking_for(1000), {}, Guess(5))
        assert sink.reason is FinishReason.LENGTH and sink.ids[10:] == [*USUAL, 18, 17, 18, 17][: length - 10]


@pytest.mark.parametrize("offset", range(8))
def test_a_loop_is_closed_at_its_token_whatever_was_drafted(offset: int) -> None:
    """33 thoughts, then a pattern of two: closed when it is 128 tokens long, in the middle of blocks of 8."""

    def target(ids: tuple[int, ...]) -> int:
        done = len(ids) - 2
        if 4 in ids:
            return 17 if done % 2 else 18
        return (9, 10, 17, 18)[(done * done * 7 + done // 3) % 4] if done < 33 else (14, 15)[done % 2]

    def executor() -> ScriptedExecutor:
        return ScriptedExecutor(target, capacities=geometry(context_length=240))

    told = list[str]()
    request = Request((9, 1), 190, guides=(bounded(None, watcher=True, told=told),))
    plain = served(request, executor(), {})
    drafted = served(
        request, executor(), {request.prompt: plain.ids}, *([Guess(offset)] if offset else []), *[Guess(7, 0, 1)] * 60
    )
    assert plain.ids == drafted.ids and told == [Loop.PATTERN] * 2
    assert plain.ids[33:37] == [15, 14, 15, 14] and plain.ids[33 + 128 :][:6] == list(USUAL)


def test_chains_of_forced_tokens_are_verified_in_one_pass() -> None:
    request = Request((9, 1), 20, guides=(bounded(4),))
    executor = thinking_for(1000)
    told = served(request, executor, {}, Guess())
    assert told.ids[4:10] == list(USUAL)
    assert [rows for kind, rows in executor.passes if kind is Kind.VERIFY_CHAIN] == [1 + len(USUAL)]


def test_every_reason_has_a_counter() -> None:
    engine = Engine(thinking_for(9), drafters=None, prices=FreePrices(), router=EvenRouter())
    assert set(engine.meter.thoughts_closed.values) == {BUDGET, *Loop}
