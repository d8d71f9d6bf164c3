"""An answer under a grammar is the plain one whatever is drafted, and a grammar that fails harms no other lane."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from tandem.errors import RequestError
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.grammar import specification
from tandem.runtime.request import FinishReason, Penalties, Request, Sampling
from tandem.tree import DraftTree
from tests.fake_routers import EvenRouter, FreePrices, RandomRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text
from tests.grammars import END, INTEGER, VOCAB, constrained_text, ids, json_source, legal, text_of
from tests.runtime.grammar.kinds import GRAMMARS, KINDS, MAKERS, SOURCES, guide_of

CAPACITIES = geometry(vocab_size=VOCAB)


def served(
    requests: Sequence[Request],
    answers: dict[tuple[int, ...], list[int]],
    schedule: Sequence[Guess],
    **options: Any,
) -> tuple[list[Recorder], ScriptedExecutor]:
    executor, seeds = ScriptedExecutor(capacities=CAPACITIES), iter(range(10**6))
    drafter = lambda: ScriptedDrafter(answers, schedule, VOCAB, next(seeds))  # noqa: E731
    options = {"router": EvenRouter(), "prices": FreePrices(), **options}
    engine = Engine(executor, drafters=drafter, **options)
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        pass
    return sinks, executor


penalties = st.sampled_from(
    [
        Penalties(),
        Penalties(),
        Penalties(repetition=1.4, frequency=0.6, logit_bias=((END, 100.0),)),
        Penalties(no_repeat_ngram_size=1),
        Penalties(min_tokens=20),
    ]
)
asked = st.lists(
    st.tuples(
        st.sampled_from(sorted(KINDS)),
        st.sampled_from([0.0, 0.0, 0.7, 1.5]),
        st.integers(0, 99),
        penalties,
        st.integers(1, 40),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)
guesses = st.builds(Guess, st.integers(0, 6), st.integers(0, 3), st.integers(0, 4))


@settings(max_examples=25)
@given(asked=asked, schedule=st.lists(guesses, max_size=4), seed=st.integers(0, 999), logprobs=st.booleans())
def test_any_drafts_give_the_plain_text(
    asked: list[tuple[str, float, int, Penalties, int, bool]], schedule: list[Guess], seed: int, logprobs: bool
) -> None:
    requests, answers = list[Request](), dict[tuple[int, ...], list[int]]()
    for number, (name, temperature, noise, wishes, max_tokens, speculate) in enumerate(asked):
        request = Request(
            (7, 3, number),
            max(max_tokens, wishes.min_tokens),
            Sampling(temperature, seed=noise),
            frozenset({END}),
            speculate=speculate,
            penalties=wishes,
            logprobs=0 if logprobs else None,
            guides=(MAKERS[name],),
        )
        requests.append(request)
        answers[request.prompt] = constrained_text(request, SOURCES[name], CAPACITIES.context_length)
    sinks, _ = served(requests, answers, schedule, router=RandomRouter(seed))
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.ids == answers[request.prompt] and sink.error is None
        assert len(sink.logprobs) == (len(sink.ids) if logprobs else 0)
        assert sink.reason is (FinishReason.STOP if sink.ids[-1] == END else FinishReason.LENGTH)


def test_bug_45_a_chain_with_an_illegal_token(caplog: pytest.LogCaptureFixture) -> None:
    """Drafts [legal, illegal, legal]: rows 0 and 1 are masked, the rest dropped; the answer parses."""
    guide, source = guide_of(GRAMMARS.compile(specification.json_schema(INTEGER))), json_source(INTEGER)
    begun = ids('{"a": ')
    guide.extend(begun)
    (one,), (letter,), (two,) = ids("1"), ids("x"), ids("2")
    cut = guide.cut(DraftTree.chain(begun[-1], [one, letter, two], [0.9, 0.8, 0.7], "x"))
    assert cut.tokens == [begun[-1], one] and cut.parents == [-1, 0]
    flat = np.zeros(VOCAB, np.float32)
    for said in ([], [one]):  # the bonus row behind the draft too
        allowed = legal(source, [*begun, *said])
        assert np.flatnonzero(guide.applied(flat, said) == 0).tolist() == allowed and letter not in allowed
    request = Request(
        (1, 2), 30, stop_ids=frozenset({END}), guides=(GRAMMARS.compile(specification.json_schema(INTEGER)),)
    )
    answer = constrained_text(request, source, CAPACITIES.context_length)
    (sink,), _ = served([request], {request.prompt: answer}, [Guess(1, 1), Guess(2, 2)])
    assert sink.ids == answer and isinstance(json.loads(text_of(sink.ids))["a"], int)
    assert not caplog.records


def test_forced_tokens_are_drafted_and_cost_no_rows_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a guess of the drafter's own; a row whose largest logit is legal is not read."""
    text = "say nothing at all but this: yes"
    maker = GRAMMARS.compile(specification.choice([text]))
    wanted = [*ids(text), END]
    read = list[int]()
    plain = Request((4, 5), 60, stop_ids=frozenset({END}), guides=(maker,), speculate=False)
    answer = constrained_text(plain, LLMatcher.grammar_from_regex(text), CAPACITIES.context_length)
    assert answer == wanted
    script = [4, 5, *wanted]
    executor = ScriptedExecutor(script, capacities=CAPACITIES)
    monkeypatch.setattr(executor, "logits", lambda output: read.append(output))
    for speculate, num_rounds in ((True, range(1, len(wanted) // 2)), (False, range(len(wanted) - 1, len(wanted)))):
        engine = Engine(
            executor, drafters=lambda: ScriptedDrafter({}, [], VOCAB), router=EvenRouter(), prices=FreePrices()
        )
        request = Request((4, 5), 60, stop_ids=frozenset({END}), guides=(maker,), speculate=speculate)
        engine.submit(request, sink := Recorder())
        while engine.step():
            pass
        assert sink.ids == wanted and sink.stats is not None and sink.stats.rounds in num_rounds
    assert read == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_penalties_leave_nothing_the_grammar_wins(temperature: float) -> None:
    """All its ids are then equally likely, the lowest first; here the end alone, long before `min_tokens`."""
    request = Request(
        (1, 2),
        40,
        Sampling(temperature, seed=1),
        frozenset({END}),
        penalties=Penalties(min_tokens=30),
        guides=(GRAMMARS.compile(specification.choice(["yes"])),),
    )
    (sink,), _ = served([request], {}, [])
    assert text_of(sink.ids) == "yes" and sink.ids[-1] == END and sink.reason is FinishReason.STOP


def test_a_grammar_that_cannot_go_on_ends_its_lane_alone() -> None:
    """Its limits are met only after some tokens: those are given, and no other lane ever knows."""
    endless = specification.regex("[xy]{9}a{5000}z")
    failing = Request(
        (1, 2), 60, stop_ids=frozenset({END}), logprobs=0, guides=(GRAMMARS.compile(endless, "guided_regex"),)
    )
    beside = Request((3, 4, 5), 40)
    answers = {beside.prompt: plain_text(beside, VOCAB, CAPACITIES.context_length)}
    given = list[list[int]]()
    for schedule in ([], [Guess(3, 1, 2)], [Guess(7)], [Guess(0, 2, 3)]):
        (broken, sound), _ = served([failing, beside], answers, schedule)
        assert sound.ids == answers[beside.prompt] and sound.reason is FinishReason.LENGTH
        assert broken.reason is FinishReason.ERROR and isinstance(broken.error, RequestError)
        assert (broken.error.param, broken.error.code, broken.error.status) == ("guided_regex", "grammar_failed", 400)
        assert "bytes follow without a choice" in str(broken.error)
        assert re.fullmatch("[xy]{9}", text_of(broken.ids)) and len(broken.logprobs) == len(broken.ids)
        given.append(broken.ids)
        answers[failing.prompt] = [*broken.ids, *ids("aaaa")]
    assert given == given[:1] * 4


def test_a_stop_before_the_failure_is_the_earlier_end() -> None:
    """Both may come in one round of drafts."""
    endless = specification.regex("[xy]{9}a{5000}z")
    failing = Request((1, 2), 60, stop_ids=frozenset({END}), guides=(GRAMMARS.compile(endless),))
    (broken,), _ = served([failing], {}, [])
    executor = ScriptedExecutor(capacities=CAPACITIES)
    drafter = lambda: ScriptedDrafter({failing.prompt: broken.ids}, [Guess(12)], VOCAB)  # noqa: E731
    engine = Engine(executor, drafters=drafter, router=EvenRouter(), prices=FreePrices())
    engine.submit(failing, sink := Recorder(wants=4))
    while engine.step():
        pass
    assert sink.reason is FinishReason.STOP and sink.error is None
    assert len(sink.blocks) == 2 and sink.ids == broken.ids
