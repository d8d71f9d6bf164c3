"""Fakes of an executor with a block drafter, whose arithmetic notices a misplaced tap, a row not read, a wrong row.

A lattice is as good as it is told to be: what is right of it follows from the text that was read.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from tandem.artifacts.io import BlockGeometry, Geometry
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tests.fake_recurrent import RecurrentExecutor
from tests.fake_taps import Seen, Tapped
from tests.fakes import geometry, mark

TOP = 4
Manner = Literal["perfect", "listed", "random", "wrong", "astray"]
"""The walk is right; what is right is listed somewhere; anything; nothing right is listed; the walk is no argmax."""


def block(rows: int = 5, context_length: int | None = None, capacities: Geometry | None = None) -> BlockGeometry:
    g = capacities or geometry()
    return BlockGeometry(rows, g.vocab_size - 1, context_length or g.context_length)


def context_kv(seen: Seen, position: int) -> bytes:
    """K and V of a row that was read of the text `seen`."""
    kv, token = seen[position]
    return mark([b"context", kv], token, position)


class Blocking(Tapped):
    """Blocks of `rows` rows, over texts of up to `longest` ids, in some `manner`."""

    def __init__(
        self,
        *args: Any,
        rows: int = 5,
        longest: int | None = None,
        manner: Manner = "perfect",
        capacities: Geometry | None = None,
        **options: Any,
    ) -> None:
        self.block = block(rows, longest, capacities)
        super().__init__(*args, top=TOP, block=self.block, capacities=capacities, **options)
        self.manner = manner
        self._texts: dict[int, Seen] = {}  # by place: the text up to there that was read last

    def _drafted(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        if kind is Kind.SYNC:
            for r in range(len(rows.token)):
                self._read(rows, r)
            return DraftOutcome(*(np.zeros((0, TOP), dtype) for dtype in (np.int32, np.float32, np.float32)), ms=0.0)
        size = self.block.rows
        lattices = [self._lattice(self._found(rows, r), rows.token[r]) for r in range(0, len(rows.token), size)]
        token, score, walk = (np.concatenate([lattice[i] for lattice in lattices]) for i in range(3))
        outputs = len(token)
        for r in range(len(rows.token)):  # behind the text, and written over by what comes there
            place = self._place(rows.block_table[rows.lane[r]], rows.position[r])
            self._draft_kv[place] = mark([b"block"], rows.token[r], rows.position[r])
        return DraftOutcome(
            token, np.zeros((outputs, TOP), np.float32), np.full(outputs, 3, np.float32), 0.0, score, walk
        )

    def _check_drafts(self, kind: Kind, rows: DraftRows) -> None:
        super()._check_drafts(kind, rows)
        size = self.block.rows
        assert max(rows.position) < self.block.context_length and not any(ring >= 0 for ring in rows.tap_out)
        if kind is Kind.SYNC:
            assert min(rows.tap) >= 0
            return
        assert set(rows.tap) == {-1} and len(rows.token) % size == 0
        for r, position in enumerate(rows.position):
            at, anchor = r % size, r - r % size
            assert rows.lane[r] == rows.lane[anchor] and rows.prefix[r] == rows.position[anchor] == position - at
            assert at == 0 or rows.token[r] == self.block.mask_token
        assert list(rows.output_row) == [r for r in range(len(rows.token)) if r % size]
        blocks = rows.lane[::size]
        assert len(set(blocks)) == len(blocks), "a lane has one block"

    def _read(self, rows: DraftRows, r: int) -> None:
        """Writes K and V of a row of the text."""
        position, tap = rows.position[r], self._taps[rows.tap[r]]
        if tap is None or len(tap.text) != position + 1 or tap.text[position][1] != rows.token[r]:
            self.astray += 1
            return
        place = self._place(rows.block_table[rows.lane[r]], position)
        self._draft_kv[place] = context_kv(tap.text, position)
        self._texts[place] = tap.text

    def _found(self, rows: DraftRows, r: int) -> Seen:
        """The text below the anchor in row r, if all of it was read."""
        places = [self._place(rows.block_table[rows.lane[r]], slot) for slot in range(rows.position[r])]
        text = self._texts.get(places[-1], ())
        wanted = [context_kv(text, position) for position in range(len(text))]
        if [self._draft_kv[place] for place in places] != wanted:
            self.astray += 1
            return ()
        return text

    def _lattice(self, text: Seen, anchor: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Candidates, scores and walk of a block over `anchor`."""
        text, dice = self.ahead(text, anchor), random.Random(repr(text))
        chance, slots = np.random.default_rng(dice.randrange(2**32)), self.block.rows - 1
        candidates, scores = list[list[int]](), chance.normal(0, 2, (slots, TOP, TOP)).astype(np.float32)
        for slot in range(slots):
            right = self.next_token(text)
            text = self.ahead(text, right)
            others = dice.sample([token for token in range(self.geometry.vocab_size) if token != right], TOP)
            listed = {"perfect": True, "wrong": False}.get(self.manner, dice.random() < 0.7 or self.manner == "listed")
            place = dice.randrange(TOP)
            candidates.append([right if listed and i == place else other for i, other in enumerate(others)])
            if self.manner == "perfect":
                scores[slot, :, place] += 20.0
        scores[0] = scores[0, 0]
        walk = [int(scores[0, 0].argmax())]
        for _, following in pairwise(scores):
            walk.append(int(following[walk[-1]].argmax()))
        if self.manner == "astray":
            walk = [dice.randrange(TOP) for _ in walk]
        return np.array(candidates, np.int32), scores, np.array(walk, np.int32)


class BlockExecutor(Blocking):
    """Of a model without recurrent layers."""


class RecurrentBlockExecutor(Blocking, RecurrentExecutor):
    """Of a model with recurrent layers."""
