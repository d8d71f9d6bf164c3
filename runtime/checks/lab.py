"""A bench to compare bits on: lanes of an executor driven row by row, logits reduced to digests.

Knows nothing of engines, drafters or text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.executor.base import Executor, Rows
from tandem.runtime.rows import Span, commit_moves, extend_rows, verify_rows
from tandem.tree import DraftTree


def pages_for(tokens: int, page_tokens: int, num_lanes: int) -> int:
    """Pages that let `num_lanes` lanes hold `tokens` tokens and a verify behind them."""
    return num_lanes * -(-(tokens + MAX_TREE_ROWS) // page_tokens)


def token_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """Fixed pseudo-random ids, the same everywhere: a linear congruence (Knuth, MMIX)."""
    ids, state = [], seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocab_size)
    return ids


class Lab:
    """Lanes with pages of their own, scattered over the pool, so that block tables matter."""

    def __init__(self, executor: Executor, num_lanes: int) -> None:
        g = executor.geometry
        self.executor, self.num_lanes = executor, num_lanes
        per_lane = min(executor.num_pages // num_lanes, g.blocks_per_lane)
        self.max_tokens = per_lane * g.page_tokens - MAX_TREE_ROWS
        self.table = np.zeros((num_lanes, g.blocks_per_lane), np.int32)
        for lane in range(num_lanes):
            pages = np.arange(per_lane, dtype=np.int32) * num_lanes + lane
            self.table[lane, :per_lane] = pages[::-1]

    def extend(self, lane: int, ids: Sequence[int], start: int, num_outputs: int = 1) -> list[str]:
        """Keeps `ids` from position `start` on; digests of the logits of the last `num_outputs` of them."""
        rows = extend_rows([Span(lane, start, ids, output=True)], self.table)
        rows.output_row = range(len(ids) - num_outputs, len(ids))
        return self._run(Kind.EXTEND, rows)

    def fill(self, lane: int, ids: Sequence[int], start: int = 0) -> None:
        """`extend` in chunks as large as a pass allows."""
        step = self.executor.geometry.max_rows
        for begin in range(0, len(ids), step):
            self.extend(lane, ids[begin : begin + step], start + begin)

    def verify(
        self, kind: Kind, lanes: Sequence[int], starts: Sequence[int], trees: Sequence[DraftTree]
    ) -> list[list[str]]:
        """Digests of every row's logits, per tree."""
        digests = iter(self._run(kind, verify_rows(kind, lanes, starts, trees, self.table)))
        return [[next(digests) for _ in range(len(tree))] for tree in trees]

    def commit(self, lanes: Sequence[int], starts: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        moves = commit_moves(lanes, starts, paths, self.table)
        if moves.lane:
            self.executor.commit(moves)

    def state(self, lane: int, length: int, start: int = 0) -> str:
        """Digest of the lane's K and V over its first `length` tokens, less the pages below that of `start`."""
        page_tokens = self.executor.geometry.page_tokens
        first = start // page_tokens
        return digest(self.executor.kv(self.table[lane, first:].tolist(), length - first * page_tokens))

    def _run(self, kind: Kind, rows: Rows) -> list[str]:
        outcome = self.executor.run(kind, rows)
        return [
            digest(self.executor.logits(i).tobytes() + outcome.argmax[i].to_bytes(4, "little"))
            for i in range(len(rows.output_row))
        ]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
