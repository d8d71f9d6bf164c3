"""An executor that is wrong on purpose, so that checks can be seen to fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tandem.keys import Kind
from tandem.runtime.executor.base import Executor, Moves, Outcome, Rows
from tandem.runtime.executor.snapshot import Snapshot


def several(kind: Kind, rows: Rows) -> bool:
    return kind is not Kind.EXTEND and len(rows.token) > 1


class Faulty:
    """`executor` with one fault in passes that `when` picks: "argmax" or "logits" moved a little, "commit" left out,
    "path" committed less its last row."""

    def __init__(self, executor: Executor, fault: str, when: Callable[[Kind, Rows], bool] = several) -> None:
        self._executor, self._fault, self._when = executor, fault, when
        self.geometry, self.num_pages, self.num_slots = executor.geometry, executor.num_pages, executor.num_slots
        self.entries = executor.entries
        self._wrong = False

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        outcome = self._executor.run(kind, rows)
        self._wrong = self._when(kind, rows)
        if self._wrong and self._fault == "argmax":
            outcome.argmax[-1] = (outcome.argmax[-1] + 1) % self.geometry.vocab_size
        return outcome

    def logits(self, output: int) -> np.ndarray:
        values = self._executor.logits(output).copy()
        if self._wrong and self._fault == "logits":
            values[3] = np.nextafter(values[3], np.float32(np.inf))  # a single ulp
        return values

    def commit(self, moves: Moves) -> float:
        if self._fault == "path" and len(moves.row) > 1:  # the last row of an accepted path is forgotten
            moves = Moves(moves.lane[:-1], moves.source[:-1], moves.target[:-1], moves.block_table, moves.row[:-1],
                          moves.state_slot)  # fmt: skip
        return 0.0 if self._fault == "commit" else self._executor.commit(moves)

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        return self._executor.kv(block_table, length)

    def save(self, slot: int, position: int) -> Snapshot:
        return self._executor.save(slot, position)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        self._executor.restore(slot, snapshot)

    def close(self) -> None:
        self._executor.close()
