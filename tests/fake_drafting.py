"""Fakes of an executor with an MTP layer, whose arithmetic notices any misplaced tap and any wrong row.

A row of the drafter is right as often as its own probabilities promise, or as it is told.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tests.fake_recurrent import RecurrentExecutor
from tests.fake_taps import Seen, Tap, Tapped
from tests.fakes import mark

TOP = 2


def draft_kv(tap: Tap, position: int, token: int) -> bytes:
    """K and V of a drafter's row over the part of `tap` up to `position`; `token` is the one behind it."""
    own = b"own" if position >= tap.drafted else b"target"
    return mark([own, tap.text[position][0]], token, position)


class Drafting(Tapped):
    """Of `accuracy` None the head's probabilities are anything and come true as often as they say; else its first
    choice is right that often and it is sure of it.
    """

    def __init__(self, *args: Any, accuracy: float | None = None, **options: Any) -> None:
        super().__init__(*args, top=TOP, **options)
        self._accuracy = accuracy

    def _drafted(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        guesses = [self._draft_row(rows, r) for r in range(len(rows.token))]
        given = [guesses[r] for r in rows.output_row]
        return DraftOutcome(
            np.array([[token for token, _ in guess] for guess in given], np.int32).reshape(-1, TOP),
            np.log([[prob for _, prob in guess] for guess in given], dtype=np.float32).reshape(-1, TOP) + 3,
            np.full(len(given), 3, np.float32),
            ms=0.0,
        )

    def _check_drafts(self, kind: Kind, rows: DraftRows) -> None:
        super()._check_drafts(kind, rows)
        assert list(rows.prefix) == [place + 1 for place in rows.position]

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
        text = self.ahead(tap.text, token)
        if rows.tap_out and rows.tap_out[r] >= 0:
            self._taps[rows.tap_out[r]] = Tap(text, min(tap.drafted, position + 1))
        return self._guess(text)

    def _lost(self) -> list[tuple[int, float]]:
        self.astray += 1
        return [(0, 0.5), (1, 0.5)]

    def _guess(self, seen: Seen) -> list[tuple[int, float]]:
        """Two tokens and their probabilities behind the text `seen`."""
        right = self.next_token(seen)
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
