"""A bench to compare bits on: lanes of an executor driven row by row, logits and states reduced to digests.

A lane may be gone on with from any position that it holds. Knows nothing of engines, drafters or text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.history import History
from tandem.runtime.executor.base import Executor, Rows
from tandem.runtime.rows import Span, commit_moves, extend_rows, step_rows, verify_rows
from tandem.tree import DraftTree


def pages_for(tokens: int, page_tokens: int, num_lanes: int) -> int:
    """Pages that let `num_lanes` lanes hold `tokens` tokens and a verify behind them."""
    return num_lanes * -(-(tokens + MAX_TREE_ROWS) // page_tokens)


KEPT_BYTES = 1 << 30
"""Recurrent states that a proof keeps, to put lanes back to positions that it comes back to."""


def slots_for(executor: Executor, num_lanes: int) -> Sequence[int]:
    """A slot for each of `num_lanes` lanes, the last ones first; none for a model without recurrent layers."""
    return range(executor.num_slots)[::-1][:num_lanes]


def token_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """Fixed pseudo-random ids, the same everywhere: a linear congruence (Knuth, MMIX)."""
    ids, state = [], seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocab_size)
    return ids


class Lab:
    """Lanes with pages of their own, scattered over the pool, so that block tables matter; so are their slots.

    Up to `kept_bytes` of recurrent states are kept of places that lanes were put to, as they often are again.
    """

    def __init__(self, executor: Executor, num_lanes: int, kept_bytes: int = 0) -> None:
        g = executor.geometry
        self.executor, self.num_lanes = executor, num_lanes
        per_lane = min(executor.num_pages // num_lanes, g.blocks_per_lane)
        self.max_tokens = per_lane * g.page_tokens - MAX_TREE_ROWS
        self.table = np.zeros((num_lanes, g.blocks_per_lane), np.int32)
        for lane in range(num_lanes):
            pages = np.arange(per_lane, dtype=np.int32) * num_lanes + lane
            self.table[lane, :per_lane] = pages[::-1]
        self.slots = slots_for(executor, g.max_lanes)
        self.history = History(executor, self.slots, kept_bytes, self.fill) if self.slots else None
        self._verified: dict[int, DraftTree] = {}  # by lane, in the order of their rows

    def extend(
        self, lane: int, ids: Sequence[int], start: int, num_outputs: int = 1, tap_out: Sequence[int] = ()
    ) -> list[str]:
        """Keeps `ids` from position `start` on; digests of the logits of the last `num_outputs` of them.

        `tap_out` is where they leave what a drafter reads, as in `Rows`; so it is of `verify`.
        """
        self._seek([lane], [start])
        rows = extend_rows([Span(lane, start, ids, outputs=1)], self.table, self.slots)
        rows.output_row, rows.tap_out = range(len(ids) - num_outputs, len(ids)), tap_out
        found = self._run(Kind.EXTEND, rows)
        self._wrote(lane, ids, start)
        return found

    def step(self, lanes: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> list[str]:
        """One pass that keeps an id in each of `lanes`; their logits' digests."""
        self._seek(lanes, starts)
        found = self._run(Kind.EXTEND, step_rows(lanes, starts, ids, self.table, self.slots))
        for lane, token, start in zip(lanes, ids, starts, strict=True):
            self._wrote(lane, [token], start)
        return found

    def fill(self, lane: int, ids: Sequence[int], start: int = 0) -> None:
        """`extend` in chunks as large as a pass allows."""
        step = self.executor.geometry.max_rows
        for begin in range(0, len(ids), step):
            self.extend(lane, ids[begin : begin + step], start + begin)

    def verify(
        self,
        kind: Kind,
        lanes: Sequence[int],
        starts: Sequence[int],
        trees: Sequence[DraftTree],
        tap_out: Sequence[int] = (),
    ) -> list[list[str]]:
        """Digests of every row's logits, per tree."""
        self._seek(lanes, starts)
        self._verified = dict(zip(lanes, trees, strict=True))
        made = verify_rows(kind, lanes, starts, trees, self.table, self.slots)
        made.tap_out = tap_out
        digests = iter(self._run(kind, made))
        return [[next(digests) for _ in range(len(tree))] for tree in trees]

    def commit(self, lanes: Sequence[int], starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Keeps a path of each of the last verify's trees; `lanes` are that verify's."""
        self._seek(lanes, starts)
        trees = [self._verified[lane] for lane in lanes]
        moves = commit_moves(lanes, starts, trees, paths, self.table, self.slots)
        if moves.lane:
            self.executor.commit(moves)
        for lane, start, tree, path in zip(lanes, starts, trees, paths, strict=True):
            self._wrote(lane, [tree.tokens[node] for node in path], start)

    def state(self, lane: int, length: int, start: int = 0) -> str:
        """Digest of the lane's K and V over its first `length` tokens, less the pages below that of `start`, and of
        its recurrent state behind them."""
        self._seek([lane], [length])
        page_tokens = self.executor.geometry.page_tokens
        first = start // page_tokens
        held = self.executor.kv(self.table[lane, first:].tolist(), length - first * page_tokens)
        return digest(held, self.executor.save(self.slots[lane], length).state.data if self.slots else b"")

    def claim(self, lane: int, position: int) -> None:
        """From here on the lane holds `position` tokens, whatever its pages and its slot hold."""
        if self.history is not None:
            self.history.claim(lane, position)

    def _seek(self, lanes: Sequence[int], positions: Sequence[int]) -> None:
        for lane, position in zip(lanes, positions, strict=True):
            if self.history is not None:
                self.history.seek(lane, position)

    def _wrote(self, lane: int, ids: Sequence[int], start: int) -> None:
        if self.history is not None:
            self.history.wrote(lane, ids, start)

    def _run(self, kind: Kind, rows: Rows) -> list[str]:
        outcome = self.executor.run(kind, rows)
        return [
            digest(self.executor.logits(i).tobytes() + outcome.argmax[i].to_bytes(4, "little"))
            for i in range(len(rows.output_row))
        ]


def digest(data: bytes, more: bytes | memoryview = b"") -> str:
    """Of both, one behind the other."""
    found = hashlib.sha256(data)
    found.update(more)
    return found.hexdigest()
