"""Fakes of an executor with an MTP layer, whose arithmetic notices any misplaced tap and any wrong row.

A tap holds the text up to its row, so a row of the drafter can tell what it should find in the taps and the K and V
below it, and what the target will say: it is right as often as its own probabilities promise, or as it is told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tandem.artifacts.io import DraftGeometry, Geometry
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Outcome, Rows
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import MARK_BYTES, ScriptedExecutor, geometry, mark

TOP = 2
OWN_ROWS = 2
"""Rows of the ring that each lane has for what its drafter leaves itself."""
Spoil = Callable[[DraftRows, DraftOutcome], None]
"""Changes what a pass gives; it may raise instead."""


@dataclass(frozen=True)
class Tap:
    """What a row of the ring holds: (KV, token) of the text up to a position, read of the target below `drafted`."""

    text: tuple[tuple[bytes, int], ...]
    drafted: int


def draft_kv(tap: Tap, position: int, token: int) -> bytes:
    """K and V of a drafter's row over the part of `tap` up to `position`; `token` is the one behind it."""
    own = b"own" if position >= tap.drafted else b"target"
    return mark([own, tap.text[position][0]], token, position)


class Drafting(ScriptedExecutor):
    """An executor of `ring` rows of taps, besides the lanes' own.

    Of `accuracy` None the head's probabilities are anything and come true as often as they say; else its first choice
    is right that often and it is sure of it. `astray` counts rows that did not find what they should have.
    """

    def __init__(
        self,
        *args: Any,
        ring: int = 128,
        accuracy: float | None = None,
        spoil: Spoil = lambda rows, outcome: None,
        capacities: Geometry | None = None,
        **options: Any,
    ) -> None:
        g = capacities or geometry()
        num_taps = ring + OWN_ROWS * g.max_lanes
        facts = DraftGeometry(num_taps, 1, g.page_tokens * MARK_BYTES, ((1, MARK_BYTES),), TOP)
        super().__init__(*args, capacities=replace(g, drafter=facts), **options)
        self.ring = ring
        self.draft_passes: list[tuple[Kind, int]] = []
        self.astray = 0
        self._accuracy, self._spoil = accuracy, spoil
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
        guesses = [self._draft_row(rows, r) for r in range(len(rows.token))]
        self._logits = []
        given = [guesses[r] for r in rows.output_row]
        outcome = DraftOutcome(
            np.array([[token for token, _ in guess] for guess in given], np.int32).reshape(-1, TOP),
            np.log([[prob for _, prob in guess] for guess in given], dtype=np.float32).reshape(-1, TOP) + 3,
            np.full(len(given), 3, np.float32),
            ms=0.1 + 0.01 * len(rows.token),
        )
        self._spoil(rows, outcome)
        return outcome

    def _check_drafts(self, kind: Kind, rows: DraftRows) -> None:
        """What the contract of a drafter's pass asks of `rows`."""
        g, lanes = self.geometry, list(rows.lane)
        assert kind in (Kind.DRAFT, Kind.SYNC)
        assert 1 <= len(lanes) <= g.max_rows and len(rows.output_row) <= g.max_outputs
        assert lanes == sorted(lanes, key=lanes.index), "rows of one lane stand together"
        assert {len(rows.token), len(rows.position), len(rows.slot), len(rows.prefix), len(rows.tap)} == {len(lanes)}
        assert list(rows.slot) == list(rows.position) and max(rows.position) < g.context_length
        assert list(rows.prefix) == [place + 1 for place in rows.position]
        assert bool(rows.output_row) == (kind is Kind.DRAFT) and 0 <= min(rows.token) <= max(rows.token) < g.vocab_size
        assert kind is Kind.DRAFT or not any(ring >= 0 for ring in rows.tap_out)
        assert list(rows.output_row) == sorted(set(rows.output_row))

    def _draft_row(self, rows: DraftRows, r: int) -> list[tuple[int, float]]:
        """Guesses of row r, once its K and V and its own tap are written."""
        position, token, table = rows.position[r], rows.token[r], rows.block_table[rows.lane[r]]
        tap = self._taps[rows.tap[r]]
        places = [self._place(table, slot) for slot in range(position + 1)]
        found = [self._draft_kv[place] for place in places[:-1]]
        if tap is None or len(tap.text) != position + 1:
            return self._lost()
        behind = [token for _, token in tap.text[1:]]
        if found != [draft_kv(tap, below, after) for below, after in enumerate(behind)]:
            return self._lost()
        self._draft_kv[places[-1]] = draft_kv(tap, position, token)
        own = mark([kv for kv, _ in tap.text], token, position + 1)
        if rows.tap_out and rows.tap_out[r] >= 0:
            self._taps[rows.tap_out[r]] = Tap((*tap.text, (own, token)), min(tap.drafted, position + 1))
        return self._guess([*tap.text, (own, token)])

    def _lost(self) -> list[tuple[int, float]]:
        self.astray += 1
        return [(0, 0.5), (1, 0.5)]

    def _guess(self, seen: Sequence[tuple[bytes, int]]) -> list[tuple[int, float]]:
        """Two tokens and their probabilities behind the text `seen`."""
        right = int(np.argmax(self._row_logits(list(seen))))
        dice = random.Random(seen[-1][0])
        wrong = [token for token in dice.sample(range(self.geometry.vocab_size), 3) if token != right][:TOP]
        if self._accuracy is not None:
            first, second = 0.9, 0.05
            tokens = [right, wrong[0]] if dice.random() < self._accuracy else wrong
        else:
            first = dice.uniform(0.3, 1.0)
            second = dice.uniform(0.0, min(first, 1.0 - first)) + 1e-6
            luck = dice.random()
            tokens = [right, wrong[0]] if luck < first else [wrong[0], right] if luck < first + second else wrong
        return [(tokens[0], first), (tokens[1], second)]


class DraftingExecutor(Drafting):
    """Of a model without recurrent layers."""


class RecurrentDraftingExecutor(Drafting, RecurrentExecutor):
    """Of a model with recurrent layers."""
