"""The fake executor of a model with recurrent layers: its arithmetic notices any misplaced state as well.

A state is a hash that every token is folded into, so each row can tell from the tokens it sees what it has to find.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Outcome, Rows
from tandem.runtime.executor.snapshot import Snapshot
from tests.fakes import MARK_BYTES, ScriptedExecutor, geometry, mark

RECURRENT = {"recurrent_layers": 1, "state_bytes": MARK_BYTES, "factor_bytes": MARK_BYTES}
EMPTY = bytes(MARK_BYTES)


def state_of(ids: Sequence[int]) -> bytes:
    """The recurrent state behind a whole text: a hash that each token is folded into."""
    return functools.reduce(lambda state, token: mark([state], token, 0), ids, EMPTY)


class RecurrentExecutor(ScriptedExecutor):
    """The same with a state per slot. A row whose state is not that of the tokens it sees writes and gives noise."""

    def __init__(self, *, capacities: Geometry | None = None, num_slots: int | None = None, **options: Any) -> None:
        super().__init__(capacities=replace(capacities or geometry(), **RECURRENT), **options)
        self.num_slots = num_slots or self.geometry.max_lanes
        self._states = [random.Random(slot).randbytes(MARK_BYTES) for slot in range(self.num_slots)]
        self._after: list[bytes] = []  # of every row of the pass
        self._factors: list[int] = []  # of every row of the last verify

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        self._after = []
        outcome = super().run(kind, rows)
        if kind is not Kind.EXTEND:
            self._factors = list(rows.token)
        return outcome

    def commit(self, moves: Moves) -> float:
        assert len(moves.row) == len(moves.lane) > 0
        for lane, row, target in zip(moves.lane, moves.row, moves.target, strict=True):
            slot = moves.state_slot[lane]
            before = self._states[slot] if target else EMPTY
            self._states[slot] = mark([before], self._factors[row], 0)
        return super().commit(moves)

    def save(self, slot: int, position: int) -> Snapshot:
        return Snapshot("fake", position, np.frombuffer(self._states[slot], np.uint8))

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        snapshot.require("fake", MARK_BYTES)
        self._states[slot] = snapshot.state.tobytes()

    def _check(self, kind: Kind, rows: Rows) -> None:
        super()._check(kind, rows)
        open_lanes = dict.fromkeys(rows.lane)
        assert len({rows.state_slot[lane] for lane in open_lanes}) == len(open_lanes), "a slot is one lane's"
        for row, above in enumerate(rows.parent):
            assert -1 <= above < row and (above < 0 or rows.lane[above] == rows.lane[row])
            if kind is not Kind.VERIFY_TREE:
                assert above == (row - 1 if row and rows.lane[row - 1] == rows.lane[row] else -1)
        assert len(rows.parent) == len(rows.token)

    def _row(self, kind: Kind, rows: Rows, r: int) -> list[tuple[bytes, int]]:
        seen, slot = super()._row(kind, rows, r), rows.state_slot[rows.lane[r]]
        held = self._states[slot] if rows.position[r] else EMPTY
        before = self._after[rows.parent[r]] if rows.parent[r] >= 0 else held
        self._after.append(mark([before], rows.token[r], 0))
        if before != state_of([token for _, token in seen[:-1]]):
            seen[-1] = (mark([before, b"astray"], rows.token[r], 0), rows.token[r])
            self._kv[self._place(rows.block_table[rows.lane[r]], rows.slot[r])] = seen[-1]
        last = r + 1 == len(rows.lane) or rows.lane[r + 1] != rows.lane[r]
        if kind is Kind.EXTEND and last:
            self._states[slot] = self._after[-1]
        return seen
