"""A fake of an executor with a drafter that is a model: the ring of taps, and what the contract of its passes asks.

A tap holds the text up to its row, so whatever reads it can tell what should stand in the K and V below it, and what
the target will say next.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tandem.artifacts.io import BlockGeometry, DraftGeometry, Geometry
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Outcome, Rows
from tests.fakes import MARK_BYTES, ScriptedExecutor, geometry, mark

OWN_ROWS = 2
"""Rows of the ring that each lane has for what its drafter leaves itself."""
Spoil = Callable[[DraftRows, DraftOutcome], None]
"""Changes what a pass gives; it may raise instead."""
Seen = tuple[tuple[bytes, int], ...]
"""(KV, token) of a text."""


@dataclass(frozen=True)
class Tap:
    """What a row of the ring holds: the text up to a position, read of the target below `drafted`."""

    text: Seen
    drafted: int


class Tapped(ScriptedExecutor):
    """An executor of `ring` rows of taps, besides the lanes' own, whose drafter gives `top` tokens a row.

    `astray` counts rows that did not find what they should have.
    """

    def __init__(
        self,
        *args: Any,
        top: int,
        ring: int = 128,
        block: BlockGeometry | None = None,
        spoil: Spoil = lambda rows, outcome: None,
        capacities: Geometry | None = None,
        **options: Any,
    ) -> None:
        g = capacities or geometry()
        num_taps = ring + OWN_ROWS * g.max_lanes
        facts = DraftGeometry(num_taps, 1, g.page_tokens * MARK_BYTES, ((1, MARK_BYTES),), top, block)
        super().__init__(*args, capacities=replace(g, drafter=facts), **options)
        self.ring = ring
        self.draft_passes: list[tuple[Kind, int]] = []
        self.astray = 0
        self._spoil = spoil
        self._taps: list[Tap | None] = [None] * num_taps
        noise = random.Random(1)
        self._draft_kv = [noise.randbytes(MARK_BYTES) for _ in self._kv]

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        outcome = super().run(kind, rows)
        assert len(rows.tap_out) in (0, len(rows.token))
        kept = [ring for ring in rows.tap_out if ring >= 0]
        assert len(set(kept)) == len(kept), "a row of the ring holds one tap"
        for seen, ring in zip(self.seen, rows.tap_out, strict=False):
            if ring >= 0:
                self._taps[ring] = Tap(tuple(seen), len(seen))
        return outcome

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        try:
            self._check_drafts(kind, rows)
        except AssertionError:
            self.astray += 1  # whoever drafts with it survives its exceptions
            raise
        self.draft_passes.append((kind, len(rows.token)))
        outcome = self._drafted(kind, rows)
        outcome.ms = 0.1 + 0.01 * len(rows.token)
        self._logits = []
        self._spoil(rows, outcome)
        return outcome

    def _drafted(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        raise NotImplementedError

    def _check_drafts(self, kind: Kind, rows: DraftRows) -> None:
        """What the contract of a drafter's pass asks of `rows`."""
        g, lanes = self.geometry, list(rows.lane)
        assert kind in (Kind.DRAFT, Kind.SYNC)
        assert 1 <= len(lanes) <= g.max_rows and len(rows.output_row) <= g.max_outputs
        assert lanes == sorted(lanes, key=lanes.index), "rows of one lane stand together"
        assert {len(rows.token), len(rows.position), len(rows.slot), len(rows.prefix), len(rows.tap)} == {len(lanes)}
        assert list(rows.slot) == list(rows.position) and max(rows.position) < g.context_length
        assert bool(rows.output_row) == (kind is Kind.DRAFT) and 0 <= min(rows.token) <= max(rows.token) < g.vocab_size
        assert kind is Kind.DRAFT or not any(ring >= 0 for ring in rows.tap_out)
        assert list(rows.output_row) == sorted(set(rows.output_row))

    def next_token(self, seen: Seen) -> int:
        """What the target says greedily behind the text `seen`."""
        return int(self._row_logits(list(seen)).argmax())

    def ahead(self, seen: Seen, token: int) -> Seen:
        """`seen` and one token more."""
        return (*seen, (mark([kv for kv, _ in seen], token, len(seen)), token))
