"""Fakes of what an engine stands on: an executor whose arithmetic notices any misplaced KV, routers, prices, sinks.

`marks` and `row_logits` are the one arithmetic in miniature: a position's KV is a hash of everything below it, and a
row's logits are a hash of its own KV. Letters: V vocabulary, B blocks per lane.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.errors import TandemError
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Entry, Moves, Outcome, Rows
from tandem.runtime.executor.snapshot import Snapshot
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.request import FinishReason, LaneStats, Request
from tandem.runtime.sampling import draw
from tests.fake_draws import FakeDraws
from tests.fake_guide import forbidden
from tests.penalties_reference import penalized

Script = Sequence[int] | Callable[[tuple[int, ...]], int]
MARK_BYTES = 8


def geometry(**changes: Any) -> Geometry:
    """Small capacities: a context of 96 ids, 40 rows a pass, 4 lanes, pages of 8 tokens, 23 ids."""
    sizes: dict[str, Any] = {"context_length": 96, "vocab_size": 23, "max_rows": 40, "max_outputs": 32, "max_lanes": 4}
    return Geometry(**{**sizes, "page_tokens": 8, "page_bytes": 8 * MARK_BYTES, **changes})


def mark(below: Sequence[bytes], token: int, position: int) -> bytes:
    """KV of `token` at `position` over the KV `below` it."""
    digest = hashlib.blake2b(b"".join(below), digest_size=MARK_BYTES)
    digest.update(token.to_bytes(8, "little") + position.to_bytes(8, "little"))
    return digest.digest()


def row_logits(own: bytes, vocab_size: int) -> np.ndarray:
    """Logits fp32 [V] of the row whose KV is `own`."""
    return np.random.default_rng(int.from_bytes(own, "little")).standard_normal(vocab_size).astype(np.float32)


def marks(ids: Sequence[int]) -> list[bytes]:
    """KV of a whole text, one token at a time."""
    kept: list[bytes] = []
    for position, token in enumerate(ids):
        kept.append(mark(kept, token, position))
    return kept


def plain_text(request: Request, vocab_size: int, context_length: int) -> list[int]:
    """The answer by definition: no lanes, pages, rows or drafts."""
    ids, below, sampling = list(request.prompt), marks(request.prompt), request.sampling
    while len(ids) < min(len(request.prompt) + request.max_tokens, context_length):
        logits, answer = row_logits(below[-1], vocab_size), ids[len(request.prompt) :]
        if not request.penalties.neutral:
            logits = penalized(logits, request.penalties, request.prompt, answer, request.stop_ids)
        if request.guides:  # those of `fake_guide`
            logits[forbidden(ids, vocab_size)] = -np.inf
        ids.append(draw(logits, sampling, sampling.seed or 0, len(ids)))
        below.append(mark(below, ids[-1], len(below)))
        if ids[-1] in request.stop_ids:
            break
    return ids[len(request.prompt) :]


class ScriptedExecutor:
    """Keeps KV by (page, place) as a device does, and starts with noise in it.

    Without `script` the logits are `row_logits`. A `script` forces the argmax: a list is the whole text, prompt
    included, by position (0 past its end); a function is asked with the ids that the row sees, its own last.
    `passes` records (kind, rows) of every pass; after `fail_after` passes the next one raises. With `entries` it is
    a device of many programs: `ran` are those that passes picked, and a pass costs what the rows of its program do.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        capacities: Geometry | None = None,
        num_pages: int | None = None,
        fail_after: int | None = None,
        entries: Sequence[Entry] = (),
    ) -> None:
        g = self.geometry = capacities or geometry()
        self.num_pages = g.max_lanes * g.blocks_per_lane if num_pages is None else num_pages
        self.passes: list[tuple[Kind, int]] = []
        self.num_slots = 0
        self.entries, self.ran = entries, set[Entry]()
        self.closed = False
        self._script, self._fail_after = script, fail_after
        noise = random.Random(0)
        num_places = self.num_pages * g.page_tokens
        self._kv = [(noise.randbytes(MARK_BYTES), noise.randrange(g.vocab_size)) for _ in range(num_places)]
        self._logits: list[np.ndarray] = []
        self.seen: list[list[tuple[bytes, int]]] = []  # by each row of the last pass
        self.draws = FakeDraws(g)

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        if self._fail_after is not None and len(self.passes) >= self._fail_after:
            raise RuntimeError("the device is gone")
        self._check(kind, rows)
        self.passes.append((kind, len(rows.token)))
        self.seen = [self._row(kind, rows, r) for r in range(len(rows.token))]
        self._logits = [self._row_logits(self.seen[r]) for r in rows.output_row]
        best = [np.sort(logits)[-2:] for logits in self._logits]
        return Outcome(
            [int(np.argmax(logits)) for logits in self._logits],
            [float(top - second) for second, top in best],
            ms=1.0 + 0.1 * self._cost_rows(kind, len(rows.token), max(rows.position) + 1),
            drawn=self._draw(rows),
        )

    def _draw(self, rows: Rows) -> Sequence[int]:
        wishes = rows.wishes() if rows.wishes is not None else None
        return self.draws.draw(wishes, self._logits) if wishes is not None else ()

    def _cost_rows(self, kind: Kind, num_rows: int, length: int) -> int:
        """Rows of the program with the fewest that holds the pass, of the least class."""
        if not self.entries:
            return num_rows
        fitting = [e for e in self.entries if e[0] is kind and e[2] >= num_rows and (not e[1] or e[1] >= length)]
        entry = min(fitting, key=lambda e: (e[2], e[1]))
        self.ran.add(entry)
        return entry[2]

    def commit(self, moves: Moves) -> float:
        self._cost_rows(Kind.COMMIT, len(moves.lane), 1)
        for lane, source, target in zip(moves.lane, moves.source, moves.target, strict=True):
            assert target < source or self.num_slots
            table = moves.block_table[lane]
            self._kv[self._place(table, target)] = self._kv[self._place(table, source)]
        return 0.1

    def logits(self, output: int) -> np.ndarray:
        return self._logits[output]

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        return b"".join(self._kv[self._place(block_table, slot)][0] for slot in range(length))

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        raise AssertionError("there is no drafter")

    def save(self, slot: int, position: int) -> Snapshot:
        raise AssertionError("there is no state")

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        raise AssertionError("there is no state")

    def close(self) -> None:
        self.closed = True

    def _check(self, kind: Kind, rows: Rows) -> None:
        """What the contract of a pass asks of `rows`."""
        g, lanes = self.geometry, list(rows.lane)
        assert g.draws or rows.wishes is None
        assert 1 <= len(lanes) <= g.max_rows and len(rows.output_row) <= g.max_outputs
        assert lanes == sorted(lanes, key=lanes.index), "rows of one lane stand together"
        assert {len(rows.token), len(rows.position), len(rows.slot), len(rows.prefix)} == {len(lanes)}
        assert len(set(zip(lanes, rows.slot, strict=True))) == len(lanes), "a slot is written once"
        assert max(rows.position) < g.context_length and 0 <= min(rows.token) <= max(rows.token) < g.vocab_size
        if kind is Kind.VERIFY_TREE:
            assert rows.ancestor is not None
            for line, prefix, position in zip(rows.ancestor, rows.prefix, rows.position, strict=True):
                assert 1 <= len(line) == position - prefix + 1 <= 32
        else:
            assert list(rows.prefix) == [place + 1 for place in rows.position] and rows.ancestor is None
            assert list(rows.slot) == list(rows.position)

    def _row(self, kind: Kind, rows: Rows, r: int) -> list[tuple[bytes, int]]:
        """(KV, token) of every position that row r sees, its own last, once its own is written."""
        position, table = rows.position[r], rows.block_table[rows.lane[r]]
        slots = list(range(min(rows.prefix[r], position)))
        if kind is Kind.VERIFY_TREE:
            assert rows.ancestor is not None
            assert rows.ancestor[r][-1] == rows.slot[r]
            slots += rows.ancestor[r][:-1]
        seen = [self._kv[self._place(table, slot)] for slot in slots]
        own = (mark([kv for kv, _ in seen], rows.token[r], position), rows.token[r])
        self._kv[self._place(table, rows.slot[r])] = own
        return [*seen, own]

    def _row_logits(self, seen: list[tuple[bytes, int]]) -> np.ndarray:
        if self._script is None:
            return row_logits(seen[-1][0], self.geometry.vocab_size)
        if callable(self._script):
            token = self._script(tuple(token for _, token in seen))
        else:
            token = self._script[len(seen)] if len(seen) < len(self._script) else 0
        return np.where(np.arange(self.geometry.vocab_size) == token, 9, 0).astype(np.float32)

    def _place(self, table: Sequence[int] | np.ndarray, slot: int) -> int:
        page_tokens = self.geometry.page_tokens
        return int(table[slot // page_tokens]) * page_tokens + slot % page_tokens


@dataclass
class Recorder:
    """A sink that keeps all it is told. `wants` is how many ids it needs before it says stop."""

    wants: int | None = None
    blocks: list[list[int]] = field(default_factory=list)
    reason: FinishReason | None = None
    stats: LaneStats | None = None
    error: TandemError | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt: list[TokenLogprob] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for block in self.blocks for token in block]

    def measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        assert len(self.logprobs) == len(self.ids), "those of each id come just before it"
        self.logprobs += logprobs

    def prompt_measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        assert not self.blocks and self.reason is None, "the prompt comes before the answer"
        self.prompt += logprobs

    def tokens(self, ids: list[int]) -> bool:
        assert self.reason is None and ids, "nothing comes after the end"
        self.blocks.append(list(ids))
        return self.wants is not None and len(self.ids) >= self.wants

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        assert self.reason is None, "an end comes once"
        self.reason, self.stats, self.error = reason, stats, error
