"""A model that drafts for choices of one prompt: what one has it read of the prompt, it has read for all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.runtime.meter import Lost
from tandem.runtime.request import FinishReason, Request, Sampling, Ticket
from tests.drafted import BLOCK_KINDS, KINDS, Selective, answer, check, engine_over, group, requests
from tests.fake_blocks import Blocking
from tests.fake_drafting import Drafting, DraftingExecutor
from tests.fake_routers import RandomRouter
from tests.fake_taps import Tapped
from tests.fakes import Recorder

PROMPT = tuple(range(20))
"""Two whole pages of 8 and four tokens more."""


def choices(request: Request, count: int) -> list[Request]:
    return [replace(request, sampling=replace(request.sampling, seed=seed)) for seed in range(count)]


def made(kind: type[Tapped], **options: object) -> Tapped:
    """Drafts that are often right."""
    own = {"manner": "listed", "rows": 5} if issubclass(kind, Blocking) else {"accuracy": 0.8}
    return kind(**own, **options)  # type: ignore[arg-type]


@settings(max_examples=200)
@given(
    asked=st.lists(
        st.tuples(
            requests([8, 9, 16, 17, 31, 48]),
            st.integers(1, 4),
            st.integers(0, 9),
            st.dictionaries(st.integers(0, 3), st.integers(0, 12)),
        ),
        min_size=1,
        max_size=3,
    ),
    num_lanes=st.integers(1, 4),
    chunk=st.sampled_from([1, 5, 16, 40]),
    ring=st.sampled_from([3, 40, 41, 60, 150]),
    seed=st.integers(0, 999),
    kind=st.sampled_from([*KINDS, *BLOCK_KINDS]),
)
def test_every_choice_is_what_it_is_alone(
    asked: list[tuple[Request, int, int, dict[int, int]]],
    num_lanes: int,
    chunk: int,
    ring: int,
    seed: int,
    kind: type[Tapped],
) -> None:
    """And every row of the model finds what it should, whoever wrote it."""
    executor = made(kind, ring=ring)
    engine = engine_over(executor, router=RandomRouter(seed), max_lanes=num_lanes, prefill_chunk=chunk)
    served = dict[int, tuple[list[Recorder], list[Ticket]]]()
    turn = 0
    while turn < 22 or engine.step():
        for number, (request, count, start, cancels) in enumerate(asked):
            if turn == start:
                sinks = [Recorder() for _ in range(count)]
                served[number] = sinks, engine.submit_all(list(zip(choices(request, count), sinks, strict=True)))
            for choice, after in cancels.items():
                if choice < count and turn == start + after:
                    engine.cancel(served[number][1][choice])
        engine.step()
        turn += 1
    for number, (request, count, _, _) in enumerate(asked):
        for one, sink in zip(choices(request, count), served[number][0], strict=True):
            cancelled = sink.reason is FinishReason.CANCELLED
            assert sink.ids == answer(one)[: len(sink.ids) if cancelled else None]
    check(engine, executor, [], [])
    assert engine.num_free_pages == executor.num_pages


@pytest.mark.parametrize("kind", [*KINDS, *BLOCK_KINDS])
def test_a_prompt_is_read_once(kind: type[Tapped]) -> None:
    """The shared 16 positions by one sync; with the first draft the four that are left of each prompt."""
    executor, asked = made(kind), choices(Request(PROMPT, 20), 3)
    engine, sinks = engine_over(executor), [Recorder() for _ in range(3)]
    engine.submit_all(list(zip(asked, sinks, strict=True)))
    while engine.step():
        pass
    check(engine, executor, asked, sinks)
    assert executor.draft_passes[0] == (Kind.SYNC, 16)
    behind = [(Kind.SYNC, 3 * 4)] if issubclass(kind, Blocking) else []
    first = (Kind.DRAFT, 3 * 5 if behind else 3 * 4)
    assert executor.draft_passes[1 : 2 + len(behind)] == [*behind, first]
    assert sum(engine.meter.lost.values.values()) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_choice_drafts_over_what_the_first_reads_for_it(kind: type[Drafting]) -> None:
    """The second goes without the model and is soon done. The first has read nothing when the third comes: now it reads
    what is shared, and no more.
    """
    executor = kind(accuracy=1.0)
    first, second, third = choices(Request(PROMPT, 30), 3)
    asked, sinks = [first, replace(second, max_tokens=4, speculate=False), third], [Recorder() for _ in range(3)]
    engine = engine_over(executor, router=Selective(lambda round_: round_ >= 9), max_lanes=2)
    engine.submit_all(list(zip(asked, sinks, strict=True)))
    while engine.num_waiting:
        assert not executor.draft_passes
        engine.step()
    assert executor.draft_passes == [(Kind.SYNC, 16)]
    while engine.step():
        pass
    check(engine, executor, asked, sinks)
    assert engine.meter.prefix_hits.value == 2 * 16 and sum(engine.meter.lost.values.values()) == 0
    assert [rows for kind, rows in executor.draft_passes if kind is Kind.SYNC] == [16]


def test_over_a_prompt_that_was_not_kept_for_the_model_none_drafts() -> None:
    """The one that brings it in goes without the model, so its taps are gone and nobody can read them."""
    executor = DraftingExecutor(accuracy=1.0)
    engine = engine_over(executor)
    first, *others = choices(Request(PROMPT, 12), 3)
    asked, sinks = [replace(first, speculate=False), *others], [Recorder() for _ in range(3)]
    engine.submit_all(list(zip(asked, sinks, strict=True)))
    while engine.step():
        pass
    check(engine, executor, asked, sinks)
    assert engine.meter.lost.values[Lost.SHARED] == 2 and not executor.draft_passes


def test_a_read_that_fails_costs_those_that_share_the_model_and_nothing_else() -> None:
    def spoil(rows: object, outcome: object) -> None:
        raise RuntimeError("no")

    executor = DraftingExecutor(accuracy=1.0, spoil=spoil)
    engine, asked = engine_over(executor), choices(Request(PROMPT, 12, Sampling(1.0)), 3)
    sinks = [Recorder() for _ in asked]
    engine.submit_all(list(zip(asked, sinks, strict=True)))
    while engine.step():
        pass
    check(engine, executor, asked, sinks)
    assert engine.meter.lost.values[Lost.FAILED] == 2 and engine.meter.lost.values[Lost.SHARED] == 1


def test_a_drafter_that_failed_within_its_lane_is_nobodys_source() -> None:
    """Its lane tells it nothing any more, so of what is shared it has a part only."""
    executor = DraftingExecutor(accuracy=1.0)
    engine, asked = engine_over(executor, prefill_chunk=5), choices(Request(PROMPT, 12), 2)
    sinks = [Recorder() for _ in asked]
    engine.submit_all(list(zip(asked, sinks, strict=True)))
    engine.step()
    engine._lanes[0].model = None
    while engine.step():
        pass
    check(engine, executor, asked, sinks)
    assert engine.meter.lost.values[Lost.SHARED] == 1 and not group(engine)._members
