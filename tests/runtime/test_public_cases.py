"""Cases of other people's trackers that concern one round of the engine, each as its report has it (docs/bug-cases.md).

Drafts are accepted in blocks wherever a case asks for it, which is asserted too: without them it would show nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Penalties, Request, Sampling
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, Script, ScriptedExecutor, geometry, plain_text
from tests.runtime.test_engine import engine_for, serve

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length
IN_FOURS = [Guess(3)]
"""Three drafts right and the row behind them: four tokens a round."""


def answered(request: Request, schedule: Sequence[Guess] = IN_FOURS) -> Recorder:
    """By the arithmetic in miniature, whose plain text `plain_text` defines."""
    executor = ScriptedExecutor()
    (sink,) = serve(engine_for(executor, [request], schedule), executor, request)
    return sink


def scripted(script: Script, request: Request, drafts: Sequence[int], schedule: Sequence[Guess] = IN_FOURS) -> Recorder:
    """By a target whose argmax is `script`, with drafters that expect `drafts`."""
    engine = Engine(
        ScriptedExecutor(script),
        drafters=lambda: ScriptedDrafter({request.prompt: drafts}, schedule, VOCAB),
        prices=FreePrices(),
        router=EvenRouter(),
    )
    sink = Recorder()
    engine.submit(request, sink)
    while engine.step():
        pass
    return sink


def test_bug_19_the_first_draft_is_the_token_behind_the_anchor() -> None:
    """A text that a drafter surely knows: a shift by one would have next to nothing accepted."""
    line = [1, 2, 3, 4, 5, 6, 7, 8]
    prompt = tuple(line * 4)
    engine = Engine(
        ScriptedExecutor((line * 12)[: CONTEXT + 1]),
        drafters=lookup_drafters(),
        prices=FreePrices(),
        router=EvenRouter(),
    )
    sink = Recorder()
    engine.submit(Request(prompt, 48), sink)
    while engine.step():
        pass
    assert sink.ids == line * 6 and sink.stats is not None
    assert sink.stats.accepted / sink.stats.rounds > 2


def test_bug_27_a_frequency_penalty_counts_every_token_of_a_block() -> None:
    request = Request((1, 1, 1, 1), 41, penalties=Penalties(frequency=1.0))
    sink = answered(request)
    assert sink.ids == plain_text(request, VOCAB, CONTEXT) and sink.stats is not None
    assert (sink.stats.rounds, sink.stats.accepted) == (10, 30)
    # Worth something: counted once a block it would be another text.
    assert sink.ids != plain_text(Request((1, 1, 1, 1), 41, penalties=Penalties(frequency=0.25)), VOCAB, CONTEXT)


@pytest.mark.parametrize("min_tokens", [0, 1, 19, 20, 21])
def test_bug_27_min_tokens_counts_tokens_not_rounds(min_tokens: int) -> None:
    """The target wants to end at once; id 0 is what is left to it."""
    request = Request((5,), 60, stop_ids=frozenset({3}), penalties=Penalties(min_tokens=min_tokens))
    wanted = [0] * min_tokens + [3]
    sink = scripted(lambda ids: 3, request, wanted)
    assert (sink.ids, sink.reason) == (wanted, FinishReason.STOP)
    assert sink.stats is not None and sink.stats.rounds < max(min_tokens, 2)


def test_bug_28_a_repetition_penalty_reaches_every_row() -> None:
    plain = Request((7, 7, 2, 7), 40)
    request = Request(plain.prompt, 40, penalties=Penalties(repetition=1.5))
    sink = answered(request)
    assert sink.ids == plain_text(request, VOCAB, CONTEXT) != plain_text(plain, VOCAB, CONTEXT)
    assert sink.stats is not None and sink.stats.accepted >= 27


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=4)])
def test_bug_30_a_banned_token_comes_from_no_row(sampling: Sampling) -> None:
    """The target says nothing but 5, and so do the drafts."""
    request = Request((5,) * 50, 15, sampling, penalties=Penalties(logit_bias=((5, -100.0),)))
    sink = scripted(lambda ids: 5, request, [5] * 15)
    assert len(sink.ids) == 15 and 5 not in sink.ids and sink.stats is not None
    assert sink.stats.drafted > 0 == sink.stats.accepted


@pytest.mark.parametrize(
    ("penalties", "sampling"),
    [
        (Penalties(repetition=1.5), Sampling()),
        (Penalties(presence=1.5), Sampling()),
        (Penalties(frequency=1.5), Sampling()),
        (Penalties(logit_bias=((3, 2.0), (9, -3.0))), Sampling()),
        (Penalties(no_repeat_ngram_size=1), Sampling()),
        (Penalties(), Sampling(1.0, min_p=0.6, seed=1)),
        (Penalties(), Sampling(1.0, top_k=2, seed=1)),
        (Penalties(), Sampling(1.0, top_p=0.3, seed=1)),
    ],
)
def test_bug_31_nothing_is_dropped_silently(penalties: Penalties, sampling: Sampling) -> None:
    """The text changes, and as it does without speculation."""
    request = Request((2, 4), 20, sampling, penalties=penalties)
    bare = Request((2, 4), 20, Sampling(sampling.temperature, seed=sampling.seed))
    sink = answered(request)
    assert sink.ids == plain_text(request, VOCAB, CONTEXT) != plain_text(bare, VOCAB, CONTEXT)
    assert sink.stats is not None and sink.stats.accepted > 0


@pytest.mark.parametrize("schedule", [[], IN_FOURS, [Guess(6, 1, 2)], [Guess(1, 2)]])
def test_bug_33_every_token_has_its_logprob(schedule: list[Guess]) -> None:
    for max_tokens in range(1, 12):
        sink = answered(Request((3, 1), max_tokens, logprobs=0), schedule)
        assert [told.id for told in sink.logprobs] == sink.ids and len(sink.ids) == max_tokens
