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

    def sync(self, spans: Sequence[DraftSpan]) -> None:
        """The drafter reads these rows."""
        self._run(Kind.SYNC, draft_rows(Kind.SYNC, spans, self._pages.table))

    def draft(self, spans: Sequence[DraftSpan]) -> DraftOutcome:
        """The same, and it guesses behind the last row of each."""
        return self._run(Kind.DRAFT, draft_rows(Kind.DRAFT, spans, self._pages.table))

    def draft_blocks(self, drafters: Sequence[TapReader], block: BlockGeometry) -> DraftOutcome:
        """It guesses a block behind the text of each of `drafters`, which it has read but for the last token."""
        lanes, starts = [drafter.lane for drafter in drafters], [len(drafter.ids) - 1 for drafter in drafters]
        anchors = [drafter.ids[-1] for drafter in drafters]
        return self._run(Kind.DRAFT, block_rows(lanes, starts, anchors, block, self._pages.table))

    def _run(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome = self._executor.draft(kind, rows)
        self._prices.observe(max(rows.position), kind, len(rows.token), outcome.ms)
        self._meter.draft_passes.add(kind)
        self._meter.draft_rows.add(kind, len(rows.token))
        self._meter.draft_seconds.add(kind, outcome.ms / 1e3)
        return outcome
