"""A block drafter for the lanes of an engine: whatever lattices say, texts are the plain ones and no tap is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters.block import BlockDrafter, Guessed
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.meter import Lost
from tandem.runtime.request import Request
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.drafted import BLOCK_KINDS, VOCAB, CheapDrafts, Selective, check, engine_over, play, requests, serve
from tests.fake_blocks import BlockExecutor, Blocking, Manner
from tests.fake_guide import Remainders
from tests.fake_routers import RandomRouter
from tests.fakes import Recorder, geometry

MANNERS: list[Manner] = ["perfect", "listed", "random", "wrong", "astray"]

requests_ = requests([1, 2, 5, 8, 9, 16, 31, 48, 86, 91, 95])


@settings(max_examples=200)
@given(
    asked=st.lists(st.tuples(requests_, st.integers(0, 8), st.none() | st.integers(0, 20)), min_size=1, max_size=7),
    num_lanes=st.integers(1, 4),
    chunk=st.sampled_from([1, 5, 16, 40]),
    ring=st.sampled_from([1, 3, 40, 41, 60, 150]),
    seed=st.none() | st.integers(0, 999),
    kind=st.sampled_from(BLOCK_KINDS),
    manner=st.sampled_from(MANNERS),
    rows=st.sampled_from([2, 5, 8, 16, 32]),
    longest=st.sampled_from([None, 60]),
    lookup=st.booleans(),
)
def test_whatever_is_drafted_ids_are_the_plain_ones(
    asked: list[tuple[Request, int, int | None]],
    num_lanes: int,
    chunk: int,
    ring: int,
    seed: int | None,
    kind: type[Blocking],
    manner: Manner,
    rows: int,
    longest: int | None,
    lookup: bool,
) -> None:
    executor = kind(ring=ring, manner=manner, rows=rows, longest=longest)
    engine = engine_over(
        executor,
        router="staircut" if seed is None else RandomRouter(seed),
        prices=PriceModel() if seed is None else CheapDrafts(),
        drafters=lookup_drafters() if lookup else None,
        max_lanes=num_lanes,
        prefill_chunk=chunk,
    )
    play(engine, executor, asked)
    assert engine.meter.lost.values[Lost.FAILED] == 0


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_a_walk_that_is_right_commits_a_block_a_round(kind: type[Blocking]) -> None:
    executor, request = kind(), Request(tuple(range(20)), 41)
    engine = engine_over(executor)
    (sink,) = serve(engine, request)
    check(engine, executor, [request], [sink])
    assert [len(block) for block in sink.blocks] == [1] + [5] * 8
    # The prompt is read before the first block; then before each the rows of the round before.
    assert executor.draft_passes == [(Kind.SYNC, 20), (Kind.DRAFT, 5), *[(Kind.SYNC, 5), (Kind.DRAFT, 5)] * 7]
    assert engine.meter.accepted_by.values == {"block": 32}
    assert [count for count in engine.meter.accepted_at.values.values() if count] == [8] * 4
    assert engine.meter.draft_passes.values == {"draft": 8, "sync": 8}
    assert engine.meter.draft_rows.values == {"draft": 40, "sync": 20 + 7 * 5}


def test_lanes_draft_in_the_same_passes() -> None:
    executor, requests = BlockExecutor(), [Request((n, 1, 2), 21) for n in range(4)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    # Four blocks have 20 rows, of which 16 are slots: 32 outputs hold all of them.
    assert executor.draft_passes[:4] == [(Kind.SYNC, 12), (Kind.DRAFT, 20), (Kind.SYNC, 20), (Kind.DRAFT, 20)]


@pytest.mark.parametrize(("rows", "passes"), [(16, [32, 16]), (12, [24, 12]), (21, [21, 21, 21])])
def test_more_blocks_than_a_pass_holds_take_several(rows: int, passes: list[int]) -> None:
    """A pass has 40 rows and 32 outputs: two blocks of 16 and 15 slots, or of 12, or one of 21."""
    executor, requests = BlockExecutor(rows=rows), [Request((n, 1, 2), 40) for n in range(3)]
    engine = engine_over(executor)
    check(engine, executor, requests, serve(engine, *requests))
    assert executor.draft_passes[: 1 + len(passes)] == [(Kind.SYNC, 9), *((Kind.DRAFT, n) for n in passes)]


def test_what_a_pass_cannot_take_is_read_in_several() -> None:
    executor, requests = BlockExecutor(), [Request((n,) * 30, 16) for n in range(3)]
    engine = engine_over(executor, router=Selective(lambda round_: round_ >= 9))
    check(engine, executor, requests, serve(engine, *requests))
    # 90 rows of prompts; the first lane has been in 9 plain rounds, the second in 8 and the third in 7, and in prefill
    # passes beside the others' prompts the first twice, the second once.
    assert executor.draft_passes[:4] == [(Kind.SYNC, 40), (Kind.SYNC, 40), (Kind.SYNC, 37), (Kind.DRAFT, 15)]


def test_plain_rounds_leave_the_model_alone_and_what_it_missed_is_read_by_the_next_draft() -> None:
    executor, request = BlockExecutor(), Request(tuple(range(5)), 30)
    engine = engine_over(executor, router=Selective(lambda round_: round_ in (9, 10)))
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes == [(Kind.SYNC, 14), (Kind.DRAFT, 5), (Kind.SYNC, 5), (Kind.DRAFT, 5)]


def test_a_full_ring_is_read_to_its_last_row() -> None:
    """40 rows of the prompt fill it; all of them are read when the other 40 come."""
    executor, request = BlockExecutor(ring=40), Request(tuple(range(20)) * 4, 12)
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes[:3] == [(Kind.SYNC, 40), (Kind.SYNC, 40), (Kind.DRAFT, 5)]
    assert sum(engine.meter.lost.values.values()) == 0


def test_who_is_behind_goes_without_where_reading_does_not_pay() -> None:
    executor = BlockExecutor(ring=44)
    router = Selective(lambda round_: False, lambda context, backlog: context == backlog)
    engine = engine_over(executor, router=router)
    requests = [Request((1,) * 30, 30), Request((2, 3), 30)]
    check(engine, executor, requests, serve(engine, *requests))
    assert router.turns[2] == (37, 36, 23) and executor.draft_passes == []
    assert engine.meter.lost.values[Lost.BEHIND] == 1


def test_a_request_whose_turn_does_not_pay_never_asks_the_model() -> None:
    executor, request = BlockExecutor(), Request((1, 2, 3), 20)
    engine = engine_over(executor, router=Selective(pays=lambda context, backlog: False))
    check(engine, executor, [request], serve(engine, request))
    assert executor.draft_passes == [] and engine.meter.lost.values[Lost.TURN] == 1


def test_near_the_answers_end_a_block_is_cut_to_what_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, sound = list[int](), BlockDrafter.guess

    def guess(self: BlockDrafter, guessed: Guessed, most: int) -> None:
        looked_at.append(len(guessed.walk))
        sound(self, guessed, most)

    monkeypatch.setattr(BlockDrafter, "guess", guess)
    executor, request = BlockExecutor(), Request((1, 2, 3), 9)
    engine = engine_over(executor)
    (sink,) = serve(engine, request)
    check(engine, executor, [request], [sink])
    assert [len(block) for block in sink.blocks] == [1, 5, 3]
    assert looked_at == [4, 2], "the target says the last token itself"


@pytest.mark.parametrize(
    ("longest", "num_prompt", "blocks"),
    [
        # The model holds 96 ids, so the last block is drafted at position 91 at most.
        (None, 80, [1, 5, 5, 5]),
        (None, 82, [1, 5, 5, *[1] * 3]),
        (None, 91, [1, 4]),
        (None, 92, [1] * 4),
        # The drafter holds 90: at position 85 there is room for the last.
        (90, 80, [1, 5, 5, *[1] * 5]),
        (90, 84, [1, 5, *[1] * 6]),
        (90, 85, [1, 5, *[1] * 5]),
        (90, 86, [1] * 10),
    ],
)
def test_a_block_has_to_fit_both_contexts(longest: int | None, num_prompt: int, blocks: list[int]) -> None:
    executor, request = BlockExecutor(longest=longest), Request(tuple(n % VOCAB for n in range(num_prompt)), 40)
    engine = engine_over(executor)
    (sink,) = serve(engine, request)
    check(engine, executor, [request], [sink])
    assert [len(block) for block in sink.blocks] == blocks
    assert engine.meter.lost.values[Lost.CONTEXT] == (blocks[-1] == 1)
    if set(blocks) == {1}:
        assert executor.draft_passes == [] and not any(executor._taps), "nor are taps kept for it"


def test_a_text_that_grew_too_long_is_not_read_any_further() -> None:
    """A copy brings it from 41 to 73 ids, and the other lane's prompt finds the ring full of what it has not read."""
    executor = BlockExecutor(lambda ids: 7, ring=41, longest=60)
    engine = engine_over(executor, router=Selective(lambda round_: False), drafters=lookup_drafters())
    first, second, sinks = Request((7,) * 40, 50), Request((2,) * 30, 3), [Recorder(), Recorder()]
    engine.submit(first, sinks[0])
    for _ in range(2):
        engine.step()
    assert len(engine._lanes[0].ids) == 73 and executor.draft_passes == [(Kind.SYNC, 40)]
    engine.submit(second, sinks[1])
    while engine.step():
        pass
    assert [sink.ids for sink in sinks] == [[7] * 50, [7] * 3]
    assert executor.draft_passes == [(Kind.SYNC, 40)] and executor.astray == 0
    assert engine.meter.lost.values == dict.fromkeys(Lost, 0) | {Lost.CONTEXT: 1}


@pytest.mark.parametrize(("lanes", "most"), [(1, 31), (2, 30), (3, 19), (4, 14), (8, 8)])
def test_lanes_that_share_a_verify_build_smaller_trees(lanes: int, most: int) -> None:
    """Two even shares, of 32 rows, for each; but a walk of 8 slots may always go on to its end."""
    sizes = list[int]()

    class Hearing(Selective):
        def choose(self, candidates: list[list[DraftTree]], *more: Any) -> list[DraftTree]:
            sizes.extend(tree.num_drafted for trees in candidates for tree in trees)
            return super().choose(candidates, *more)

    executor = BlockExecutor(rows=9, manner="random", capacities=geometry(max_lanes=8), ring=400)
    requests = [Request((n, 1, 2), 40) for n in range(lanes)]
    engine = engine_over(executor, router=Hearing())
    check(engine, executor, requests, serve(engine, *requests))
    together = sizes[: lanes * 20]
    assert max(together) == most and min(together) > 0


def test_guides_cut_what_the_model_drafts() -> None:
    executor, request = BlockExecutor(manner="listed"), Request((1, 2, 3), 40, guides=(Remainders,))
    engine = engine_over(executor)
    check(engine, executor, [request], serve(engine, request))
    assert engine.meter.drafted_by.values["block"] > 0


def test_passes_of_the_model_are_priced() -> None:
    executor, prices = BlockExecutor(), CheapDrafts()
    serve(engine_over(executor, prices=prices), Request((1, 2, 3), 20))
    seen = [(kind, rows) for _, kind, rows, _ in prices.seen if kind in (Kind.DRAFT, Kind.SYNC)]
    assert seen == executor.draft_passes != []


def test_a_draft_that_was_never_measured_is_priced_as_a_pass_of_its_blocks() -> None:
    prices = PriceModel({"1024": {Kind.EXTEND: {"1": 1.0}, Kind.DRAFT: {"1": 1.0, "64": 64.0}}})
    engine = engine_over(BlockExecutor(rows=16), router="staircut", prices=prices)
    assert isinstance(engine.router, StairCut)
    assert engine.router._draft_costs.ms("block", 1024, 2) == pytest.approx(32.0)


def test_a_router_learns_of_blocks_by_their_own_name() -> None:
    executor = BlockExecutor(manner="random")
    router = StairCut(PriceModel(), learn_cost=False)
    engine = engine_over(executor, router=router)
    serve(engine, *(Request((n, 1), 60) for n in range(VOCAB)))
    assert set(router._calibration._counts) == {"block"}


@pytest.mark.parametrize(("router", "least", "most"), [("staircut", 5, 100), ("fixed:8", 1100, 1200)])
def test_one_that_is_always_wrong_is_hardly_ever_asked_where_drafts_cost(router: str, least: int, most: int) -> None:
    """Rows cost nothing here, and a draft as much as a step; a router that goes by no price has all of them."""
    passes = {kind: {"1": 1.0} for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.DRAFT)}
    table = {"1024": passes | {Kind.SYNC: {"1": 0.1}}}
    executor = BlockExecutor(manner="wrong")
    engine = engine_over(executor, router=router, learn_cost=False, prices=PriceModel(table, live=False))
    for n in range(20):
        request = Request((n, 1), 60)
        check(engine, executor, [request], serve(engine, request))
    assert least < [kind for kind, _ in executor.draft_passes].count(Kind.DRAFT) < most
