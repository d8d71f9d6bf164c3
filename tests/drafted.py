"""What tests of a model that drafts for an engine's lanes stand on: routers that want it when told, prices, checks.

Knows nothing of what is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.runtime.drafters.group import DraftGroup
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Request, Sampling, Ticket
from tests.fake_blocks import BlockExecutor, RecurrentBlockExecutor
from tests.fake_drafting import DraftingExecutor, RecurrentDraftingExecutor
from tests.fake_guide import Remainders
from tests.fake_routers import EvenRouter, FreePrices
from tests.fake_taps import Tapped
from tests.fakes import Recorder, geometry, marks, plain_text

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length
KINDS = [DraftingExecutor, RecurrentDraftingExecutor]
BLOCK_KINDS = [BlockExecutor, RecurrentBlockExecutor]


class CheapDrafts(FreePrices):
    """Drafts that cost next to nothing, so that chains are deep and blocks pay."""

    def ms(self, context: int, kind: Kind, rows: int) -> float:
        return 1.0 if kind in (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE) else 1e-3


class Selective(EvenRouter):
    """Wants the model in rounds for which `wanted` says so, by their number; `pays` decides by context and backlog."""

    def __init__(
        self,
        wanted: Callable[[int], bool] = lambda round_: True,
        pays: Callable[[int, int], bool] = lambda context, backlog: True,
    ) -> None:
        super().__init__()
        self.rounds, self.turns = 0, list[tuple[int, int, float]]()
        self._wanted, self._pays = wanted, pays

    def wants_model(self, *asked: object) -> bool:
        self.rounds += 1
        return self._wanted(self.rounds - 1)

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        self.turns.append((context, backlog, num_tokens))
        return self._pays(context, backlog)


def answer(request: Request) -> list[int]:
    return plain_text(request, VOCAB, CONTEXT)


def engine_over(executor: Tapped, **options: object) -> Engine:
    options = {"router": EvenRouter(), "prices": CheapDrafts(), "drafters": None, **options}
    return Engine(executor, models=True, **options)  # type: ignore[arg-type]


def group(engine: Engine) -> DraftGroup:
    assert engine._models is not None
    return engine._models


def serve(engine: Engine, *requests: Request) -> list[Recorder]:
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        pass
    return sinks


def check(engine: Engine, executor: Tapped, requests: Sequence[Request], sinks: Sequence[Recorder]) -> None:
    """Answers are the plain ones, every row of the drafter found what it should, and all taps are free again."""
    assert [sink.ids for sink in sinks] == [answer(request) for request in requests]
    assert executor.astray == 0
    group(engine)._ring.sweep()
    assert group(engine).num_free_taps == executor.ring and not group(engine)._members


def requests(lengths: Sequence[int], **more: st.SearchStrategy[object]) -> st.SearchStrategy[Request]:
    """Requests of every kind, whose prompts have one of `lengths` ids."""
    prompts = st.sampled_from(lengths).flatmap(lambda n: st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n))
    return st.builds(
        Request,
        prompt=prompts.map(tuple),
        max_tokens=st.integers(0, 40),
        sampling=st.sampled_from([Sampling(), Sampling(), Sampling(temperature=1.0, seed=7)]),
        stop_ids=st.sampled_from([frozenset(), frozenset(), frozenset({3, 11})]),
        speculate=st.sampled_from([True, True, True, False]),
        guides=st.sampled_from([(), (), (Remainders,), (Remainders.lax,)]),
        logprobs=st.sampled_from([None, None, 2]),
        **more,
    )


def play(engine: Engine, executor: Tapped, asked: Sequence[tuple[Request, int, int | None]]) -> None:
    """Requests, each with the step it comes at and how many steps later it is cancelled: `check`s all of them, and in
    every step that each lane's K and V are those of its text."""
    sinks, tickets = [Recorder() for _ in asked], dict[int, Ticket]()
    busy, turn = True, 0
    while busy or len(tickets) < len(asked):
        for i, (request, start, _) in enumerate(asked):
            if start == turn:
                tickets[i] = engine.submit(request, sinks[i])
        for i, (_, start, cancelled_after) in enumerate(asked):
            if cancelled_after is not None and start + cancelled_after == turn:
                engine.cancel(tickets[i])
        busy = engine.step()
        for lane in engine._lanes:
            held = executor.kv(engine._pages.table[lane.index].tolist(), lane.kv_length)
            assert held == b"".join(marks(lane.ids[: lane.kv_length]))
        turn += 1
    ended = [sink.reason is not FinishReason.CANCELLED for sink in sinks]
    for (request, _, _), sink, whole in zip(asked, sinks, ended, strict=True):
        assert sink.ids == answer(request)[: None if whole else len(sink.ids)]
    check(engine, executor, [], [])
    assert engine.num_free_pages == executor.num_pages
