"""Passes of a model drafter over an executor: built of spans or blocks, priced and counted.

Knows nothing of which are due, or of what guesses are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.artifacts.io import BlockGeometry
from tandem.keys import Kind
from tandem.runtime.drafters.reader import TapReader
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Executor
from tandem.runtime.meter import Meter
from tandem.runtime.pages import PageTable
from tandem.runtime.rows import DraftSpan, block_rows, draft_rows


class Prices(Protocol):
    """Knows what passes cost, and learns it."""

    def ms(self, context: int, kind: Kind, rows: int) -> float: ...

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None: ...


class DraftPasses:
    """Runs what lanes, whose pages stand in `pages`, have for a pass: spans of at most `max_rows` rows together, or
    blocks of at most `draft_lanes`.
    """

    def __init__(self, executor: Executor, pages: PageTable, prices: Prices, meter: Meter) -> None:
        self._executor, self._pages, self._prices, self._meter = executor, pages, prices, meter
        g = executor.geometry
        self.max_rows, self.draft_lanes, self.vocab_size = g.max_rows, g.draft_lanes, g.vocab_size
        self.chain = g.drafter.chain if g.drafter else 1

    def sync(self, spans: Sequence[DraftSpan]) -> None:
        """The drafter reads these rows."""
        self._run(Kind.SYNC, draft_rows(Kind.SYNC, spans, self._pages.table))

    def draft(self, spans: Sequence[DraftSpan], chain: int = 1) -> DraftOutcome:
        """The same, and it guesses behind the last row of each, a `chain` of so many tokens by itself."""
        rows = draft_rows(Kind.DRAFT, spans, self._pages.table)
        rows.chain = chain
        return self._run(Kind.DRAFT, rows)

    def draft_blocks(self, drafters: Sequence[TapReader], block: BlockGeometry) -> DraftOutcome:
        """It guesses a block behind the text of each of `drafters`, which it has read but for the last token."""
        lanes, starts = [drafter.lane for drafter in drafters], [len(drafter.ids) - 1 for drafter in drafters]
        anchors = [drafter.ids[-1] for drafter in drafters]
        return self._run(Kind.DRAFT, block_rows(lanes, starts, anchors, block, self._pages.table))

    def _run(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome, context, num_rows = self._executor.draft(kind, rows), max(rows.position), len(rows.token)
        share = 1.0  # of the time, what the first pass of a chain took
        if rows.chain > 1:
            first, other = (self._prices.ms(context, kind, count) for count in (num_rows, len(rows.output_row)))
            share = first / (first + (rows.chain - 1) * other)
        self._prices.observe(context, kind, num_rows, outcome.ms * share)
        self._meter.draft_passes.add(kind, rows.chain)
        self._meter.draft_rows.add(kind, num_rows + (rows.chain - 1) * len(rows.output_row))
        self._meter.draft_seconds.add(kind, outcome.ms / 1e3)
        return outcome
