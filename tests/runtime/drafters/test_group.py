"""A model that drafts for the lanes of an engine: whatever it guesses, texts are the plain ones and no tap is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.meter import Lost
from tandem.runtime.request import Request
from tests.drafted import KINDS, VOCAB, CheapDrafts, Selective, check, engine_over, group, play, requests, serve
from tests.fake_drafting import Drafting, DraftingExecutor
from tests.fake_guide import Remainders
from tests.fake_routers import RandomRouter
from tests.fakes import Recorder, geometry

requests_ = requests([1, 2, 5, 8, 9, 16, 31, 48, 93, 95], prompt_logprobs=st.sampled_from([None, None, 1]))


@settings(max_examples=200)
@given(
    asked=st.lists(st.tuples(requests_, st.integers(0, 8), st.none() | st.integers(0, 20)), min_size=1, max_size=7),
    num_lanes=st.integers(1, 4),
    chunk=st.sampled_from([1, 5, 16, 40]),
    ring=st.sampled_from([1, 3, 40, 41, 60, 150]),
    seed=st.none() | st.integers(0, 999),
    kind=st.sampled_from(KINDS),
    accuracy=st.sampled_from([None, 0.0, 0.8, 1.0]),
    lookup=st.booleans(),
    chain=st.sampled_from([1, 1, 2, 4]),
)
def test_whatever_is_drafted_ids_are_the_plain_ones(
    asked: list[tuple[Request, int, int | None]],
    num_lanes: int,
    chunk: int,
    ring: int,
    seed: int | None,
    kind: type[Drafting],
    accuracy: float | None,
    lookup: bool,
    chain: int,
) -> None:
    executor = kind(ring=ring, accuracy=accuracy, chain=chain)
    engine = engine_over(
        executor,
        router="staircut" if seed is None else RandomRouter(seed),
        prices=PriceModel() if seed is None else CheapDrafts(),
        drafters=lookup_drafters() if lookup else None,
        max_lanes=num_lanes,
        prefill_chunk=chunk,
    )
    play(engine, executor, asked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_is_right_commits_a_chain_a_round(kind: type[Drafting]) -> None:
    executor, request = kind(accuracy=1.0), Request(tuple(range(20)), 41)
    engine = engine_over(executor)
    (sink,) = serve(engine, request)
    check(engine, executor, [request], [sink])
    assert [len(block) for block in sink.blocks] == [1] + [5] * 8
    # The prompt is read by the first draft; then each reads the rows of the round before.
    drafts = [(Kind.DRAFT, rows) for rows in (20, 1, 1, 1, 5, 1, 1, 1, 5)]
    assert executor.draft_passes[:9] == drafts
    assert engine.meter.drafted_by.values == {"mtp": 64} and engine.meter.accepted_by.values == {"mtp": 32}
    assert engine.meter.draft_passes.values == {"draft": 32, "sync": 0}
    assert engine.meter.draft_rows.values == {"draft": 20 + 7 * 5 + 8 * 3, "sync": 0}


def test_lanes_draft_in_the_same_passes() -> None:
    executor, requests = DraftingExecutor(accuracy=1.0), [Request((n, 1, 2), 21) for n in range(4)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    assert executor.draft_passes[:5] == [(Kind.DRAFT, rows) for rows in (12, 4, 4, 4, 20)]


def test_chains_are_as_deep_as_there_are_rows_for() -> None:
    """Of 32 rows 12 lanes leave 20 to draft: one each."""
    executor = DraftingExecutor(capacities=geometry(max_lanes=12), accuracy=1.0, ring=200)
    requests = [Request((n, 1, 2), 6) for n in range(12)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    assert executor.draft_passes == [(Kind.DRAFT, 36), (Kind.DRAFT, 24)]


def test_what_a_pass_cannot_take_is_read_before() -> None:
    executor, requests = DraftingExecutor(accuracy=1.0), [Request((n,) * 30, 16) for n in range(3)]
    engine = engine_over(executor, router=Selective(lambda round_: round_ >= 9))
    check(engine, executor, requests, serve(engine, *requests))
    # 90 rows of prompts; the first lane has been in 9 plain rounds, the second in 8 and the third in 7, and in prefill
    # passes beside the others' prompts the first twice, the second once.
    assert executor.draft_passes[:3] == [(Kind.SYNC, 40), (Kind.SYNC, 37), (Kind.DRAFT, 40)]


def test_plain_rounds_leave_the_model_alone_and_what_it_missed_is_read_by_the_next_draft() -> None:
    executor, request = DraftingExecutor(accuracy=1.0), Request(tuple(range(5)), 30)
    engine = engine_over(executor, router=Selective(lambda round_: round_ in (9, 10)))
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes == [(Kind.DRAFT, rows) for rows in (14, 1, 1, 1, 5, 1, 1, 1)]


def test_a_prompt_is_read_in_pieces_where_the_ring_is_short() -> None:
    executor, request = DraftingExecutor(ring=40, accuracy=1.0), Request(tuple(range(20)) * 4, 12)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert executor.passes[:2] == [(Kind.EXTEND, 40), (Kind.EXTEND, 40)]
    # Of the first 40 rows one is left, so 39 are free and the second pass wants 40: the request goes on without.
    assert engine.meter.lost.values == dict.fromkeys(Lost, 0) | {Lost.BEHIND: 1}
    executor = DraftingExecutor(ring=41, accuracy=1.0)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes[:2] == [(Kind.SYNC, 39), (Kind.SYNC, 1)]
    assert executor.draft_passes[2] == (Kind.DRAFT, 40)
    assert engine.meter.draft_rows.values["sync"] == 40


@pytest.mark.parametrize("pays", [True, False])
def test_who_is_furthest_behind_reads_or_goes_without(pays: bool) -> None:
    executor = DraftingExecutor(ring=44, accuracy=1.0)
    router = Selective(lambda round_: False, lambda context, backlog: pays or context == backlog)
    engine = engine_over(executor, router=router)
    requests = [Request((1,) * 30, 30), Request((2, 3), 30)]
    check(engine, executor, requests, serve(engine, *requests))
    assert router.turns[:2] == [(30, 30, 30), (2, 2, 30)]
    # 44 rows are taken when either lane has committed 7 tokens: 36 of the longer one's 37, of which one is left.
    assert router.turns[2] == (37, 35, 23)
    assert executor.draft_passes[:1] == ([(Kind.SYNC, 35)] if pays else [])
    assert engine.meter.lost.values[Lost.BEHIND] == (not pays)


def test_an_answer_is_expected_to_be_as_long_as_they_usually_are() -> None:
    """4, 4 + 0.1 (14 - 4), and no more than it may have. Answers that could not be drafted say nothing."""
    router = Selective()
    engine = engine_over(DraftingExecutor(accuracy=1.0), router=router, max_lanes=1)
    for max_tokens in (1, 4, 2, 14, 50, 3):
        serve(engine, Request((1, 2, 3), max_tokens))
    assert [tokens for _, _, tokens in router.turns] == pytest.approx([4, 4, 5, 3])


@pytest.mark.parametrize(("num_prompt", "each"), [(10, 0.3), (40, 0.15), (80, 0.15)])
def test_a_row_to_read_costs_its_share_of_a_whole_pass(num_prompt: int, each: float) -> None:
    """A pass takes 40 rows; one costs 2 ms and 0.1 a row."""
    heard = list[float]()

    class Hearing(Selective):
        def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
            heard.append(sync_ms)
            return True

    class Rising(CheapDrafts):
        def ms(self, context: int, kind: Kind, rows: int) -> float:
            return 2.0 + 0.1 * rows if kind is Kind.SYNC else super().ms(context, kind, rows)

    serve(engine_over(DraftingExecutor(), router=Hearing(), prices=Rising()), Request((1,) * num_prompt, 9))
    assert heard[0] == pytest.approx(each)


def test_a_request_whose_turn_does_not_pay_never_asks_the_model() -> None:
    executor, request = DraftingExecutor(accuracy=1.0), Request((1, 2, 3), 20)
    engine = engine_over(executor, router=Selective(pays=lambda context, backlog: False))
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes == [] and engine.meter.lost.values[Lost.TURN] == 1
    assert engine.meter.plain_rounds.values["off"] == 19


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_an_answer_too_short_to_draft_does_not_join(max_tokens: int) -> None:
    executor, request = DraftingExecutor(accuracy=1.0), Request((1, 2, 3), max_tokens)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes == [] and sum(engine.meter.lost.values.values()) == 0
    assert not any(executor._taps), "nor are taps kept for it"


def test_chains_end_with_the_answer() -> None:
    executor, request = DraftingExecutor(accuracy=1.0), Request((1, 2, 3), 4)
    engine = engine_over(executor)
    (sink,) = serve(engine, request)
    check(engine, executor, [request], [sink])
    assert [len(block) for block in sink.blocks] == [1, 3] and len(executor.draft_passes) == 2


def test_requests_that_do_not_speculate_take_no_part() -> None:
    executor, request = DraftingExecutor(accuracy=1.0), Request((1, 2, 3), 20, speculate=False)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes == []


def test_deciles_learn_what_the_head_is_worth() -> None:
    executor = DraftingExecutor(accuracy=0.5)
    engine = engine_over(executor)
    for m in range(3):
        serve(engine, *(Request((n, m), 60) for n in range(VOCAB)))
    assert group(engine)._strategy._deciles.rate(0.9) == pytest.approx(0.5, abs=0.06)
    assert executor.astray == 0


def test_a_new_engine_over_the_same_executor_starts_afresh() -> None:
    executor = DraftingExecutor(accuracy=1.0)
    for n in range(3):
        engine, request, left = engine_over(executor), Request((n, 1, 2, 3), 30), Recorder()
        engine.submit(request, left)
        for _ in range(1 + n):
            engine.step()
        engine.close()
        engine = engine_over(executor)
        check(engine, executor, [request], serve(engine, request))


def test_guides_cut_what_the_model_drafts() -> None:
    executor, request = DraftingExecutor(accuracy=1.0), Request((1, 2, 3), 40, guides=(Remainders,))
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert engine.meter.drafted_by.values["mtp"] > 0


def test_passes_of_the_model_are_priced() -> None:
    executor, prices = DraftingExecutor(accuracy=1.0), CheapDrafts()
    serve(engine_over(executor, prices=prices), Request((1, 2, 3), 20))
    seen = [(kind, rows) for _, kind, rows, _ in prices.seen if kind in (Kind.DRAFT, Kind.SYNC)]
    assert seen == executor.draft_passes != []


def test_taps_are_asked_for_only_where_somebody_reads_them() -> None:
    asked: list[list[int]] = []

    class Heard(DraftingExecutor):
        def run(self, kind: Kind, rows: object) -> object:  # type: ignore[override]
            asked.append([place >= 0 for place in rows.tap_out])  # type: ignore[attr-defined]
            return super().run(kind, rows)  # type: ignore[arg-type]

    executor = Heard(accuracy=0.0)
    serve(engine_over(executor), Request((1, 2), 6, speculate=False), Request((3, 4, 5), 6))
    assert asked[0] == [False] * 2 + [True] * 3
    assert all(line == [False] + [True] * (len(line) - 1) for line in asked[1:])
    asked.clear()
    serve(engine_over(executor), Request((1, 2), 6, speculate=False))
    assert not any(asked)
    assert np.all(executor.astray == 0)
