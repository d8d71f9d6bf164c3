"""Chains that an executor makes by itself: asked for once a round, priced and counted as the passes that they are."""

from __future__ import annotations

from dataclasses import replace

from tandem.keys import Kind
from tandem.runtime.drafters.passes import DraftPasses
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tandem.runtime.meter import Meter
from tandem.runtime.pages import PageTable
from tandem.runtime.request import Request
from tandem.runtime.rows import DraftSpan
from tests.drafted import CheapDrafts, check, engine_over, serve
from tests.fake_drafting import DraftingExecutor
from tests.fake_taps import Tap


def test_an_executor_that_makes_chains_is_asked_once_a_round() -> None:
    """It gets the same guesses; where there is room for fewer, fewer are asked for: as many as any lane takes."""
    executor, requests = DraftingExecutor(accuracy=1.0, chain=4), [Request((n, 1, 2), 20 - n) for n in range(2)]
    engine = engine_over(executor)
    sinks = serve(engine, *requests)
    check(engine, executor, requests, sinks)
    assert [len(block) for block in sinks[0].blocks] == [1, 5, 5, 5, 4]
    assert executor.chains == [4, 4, 4, 3]
    assert executor.draft_passes[:5] == [(Kind.DRAFT, rows) for rows in (6, 2, 2, 2, 10)]
    assert engine.meter.draft_passes.values == {"draft": 15, "sync": 0}
    assert engine.meter.draft_rows.values["draft"] == sum(rows for _, rows in executor.draft_passes)


def test_of_a_chain_its_first_pass_is_observed_by_its_share() -> None:
    """Priced 2 with five rows and 1 with one: of 10 ms for four passes the first took 4."""
    seen = list[tuple[int, int, float]]()

    class Prices(CheapDrafts):
        def ms(self, context: int, kind: Kind, rows: int) -> float:
            return 2.0 if rows == 5 else 1.0

        def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None:
            seen.append((context, rows, ms))

    class Slow(DraftingExecutor):
        def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
            return replace(super().draft(kind, rows), ms=10.0)

    executor = Slow(chain=4)
    pages = PageTable(executor.num_pages, executor.geometry.page_tokens, 4, executor.geometry.blocks_per_lane)
    passes = DraftPasses(executor, pages, Prices(), Meter())
    executor._taps = [Tap(((b"", 0),), 1)] * len(executor._taps)
    passes.draft([DraftSpan(0, 7, [1] * 5, range(5), 0)], chain=4)
    passes.draft([DraftSpan(0, 7, [1] * 5, range(5), 0)])
    assert seen == [(11, 5, 4.0), (11, 5, 10.0)]
