"""Watches an engine from below and above: which bits chose each token, and what state each commit left.

Knows nothing of what is right; two recordings of one request are compared elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tandem.errors import TandemError
from tandem.keys import Kind
from tandem.runtime.checks.lab import digest
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Executor, Moves, Outcome, Rows
from tandem.runtime.executor.snapshot import Snapshot
from tandem.runtime.request import FinishReason, LaneStats

LATELY = 320
"""Last tokens of a text whose K and V are compared after every round: all of it would take minutes."""


class Watch:
    """An executor that remembers its last pass. `passes` counts (kind, rows) of all."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.geometry, self.num_pages, self.num_slots = executor.geometry, executor.num_pages, executor.num_slots
        self.entries = executor.entries
        self.passes: Counter[tuple[Kind, int]] = Counter()
        self._last: tuple[Kind, Rows, Outcome] | None = None

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        outcome = self._executor.run(kind, rows)
        self.passes[kind, len(rows.token)] += 1
        self._last = kind, rows, outcome
        return outcome

    def commit(self, moves: Moves) -> float:
        return self._executor.commit(moves)

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome = self._executor.draft(kind, rows)
        self.passes[kind, len(rows.token)] += 1
        return outcome

    def logits(self, output: int) -> np.ndarray:
        return self._executor.logits(output)

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        return self._executor.kv(block_table, length)

    def save(self, slot: int, position: int) -> Snapshot:
        return self._executor.save(slot, position)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        self._executor.restore(slot, snapshot)

    def close(self) -> None:
        self._executor.close()

    def seen(self, lane: int, text: Sequence[int]) -> Iterator[tuple[int, str, float]]:
        """(position, digest of logits, top-two gap) of the last pass's rows of `lane` that stand on `text`."""
        assert self._last is not None
        kind, rows, outcome = self._last
        for output, row in enumerate(rows.output_row):
            if rows.lane[row] != lane:
                continue
            start, line = _line(kind, rows, row)
            if list(text[start : start + len(line)]) == line:
                bits = digest(self.logits(output).tobytes())
                yield start + len(line) - 1, bits, outcome.gap[output]

    def state(self, lane: int, length: int, start: int = 0) -> str:
        """Digest of the lane's K and V over `length` tokens less the pages below that of `start`, and of its recurrent
        state, by the last table and slots."""
        assert self._last is not None
        rows, page_tokens = self._last[1], self.geometry.page_tokens
        first = start // page_tokens
        held = self.kv(rows.block_table[lane, first:].tolist(), length - first * page_tokens)
        return digest(held, self.save(rows.state_slot[lane], length).state.data if rows.state_slot else b"")


class HostDraws(Watch):
    """One whose tokens the host draws, whatever the executor could do."""

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.geometry = replace(executor.geometry, draws=False)


def _line(kind: Kind, rows: Rows, row: int) -> tuple[int, list[int]]:
    """The tokens of this pass that `row` sees in its lane, its own last, and the position of the first."""
    mine = [other for other, lane in enumerate(rows.lane) if lane == rows.lane[row]]
    if kind is not Kind.VERIFY_TREE:
        line = [other for other in mine if other <= row]
        return rows.position[line[0]], [rows.token[other] for other in line]
    assert rows.ancestor is not None
    by_slot = {rows.slot[other]: rows.token[other] for other in mine}
    return rows.prefix[row], [by_slot[slot] for slot in rows.ancestor[row]]


@dataclass(slots=True)
class Recording:
    """A sink that keeps an answer with its bits, and needs no more after `wanted` ids.

    `logits[i]` and `gaps[i]` are of the row that chose `ids[i]`; `states[i]` is the state below it, prompt included,
    where a round ended there; behind the first, of long texts only what was written LATELY. `lane` tells the lane's
    number once it is open.
    """

    watch: Watch
    lane: Callable[[], int]
    prompt: tuple[int, ...]
    wanted: int
    ids: list[int] = field(default_factory=list)
    logits: dict[int, str] = field(default_factory=dict)
    gaps: dict[int, float] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    stats: LaneStats = field(default_factory=LaneStats)
    reason: FinishReason | None = None

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        text = [*self.prompt, *self.ids]
        for position, bits, gap in self.watch.seen(self.lane(), text):
            index = position + 1 - len(self.prompt)
            self.logits[index], self.gaps[index] = bits, gap
        start = max(0, len(text) - 1 - LATELY) if len(self.ids) > 1 else 0
        self.states[len(self.ids) - 1] = self.watch.state(self.lane(), len(text) - 1, start)
        return len(self.ids) >= self.wanted

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        self.reason, self.stats = reason, stats
