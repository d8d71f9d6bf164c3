"""Proves the programs that draw: every id against the host's draw from the very logits, in every row bucket.

Seeds, filters, penalties and paths are drawn from a fixed noise, so a build repeats itself. Knows nothing of programs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.proof import Report
from tandem.runtime.executor.base import Executor, Wishes
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Penalties, Sampling
from tandem.runtime.rows import Span, extend_rows
from tandem.runtime.sampling import draw
from tandem.runtime.wish_row import wish_row
from tandem.wish import WISH, Wish

TURNS = 6
"""Passes of a row bucket: their rows wish other things each time."""
MOST_FRESH = 5
TEMPERATURES = (0.0, 0.05, 0.6, 1.0, 1.7, 30.0)
TOP_KS = (0, 1, 20, 300, 20_000)
TOP_PS = (1.0, 0.95, 0.5, 0.999999, 1e-6)
MIN_PS = (0.0, 0.0, 0.05)
PENALTIES = (None, Penalties(repetition=1.2), Penalties(frequency=0.6, presence=0.3), Penalties(0.9, -0.5, 0.1))
"""What rows wish, in all mixtures."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What one row wishes: how it draws, whose text it looks at, and what is said behind that."""

    lane: int
    sampling: Sampling
    penalties: Penalties | None
    seed: int
    position: int
    said: list[int]

    def __str__(self) -> str:
        s = self.sampling
        how = f"temperature {s.temperature:g}, top_k {s.top_k}, top_p {s.top_p:g}, min_p {s.min_p:g}"
        return f"{how}, {'penalties' if self.penalties else 'no penalties'}, seed {self.seed}, position {self.position}"


class DrawsProof:
    """Passes of as many rows as each program that draws takes, on one lane of `executor`, whose text is lost."""

    def __init__(self, executor: Executor, report: Report, advance: Callable[[str], None] = lambda name: None) -> None:
        g = executor.geometry
        self._executor, self._report, self._advance = executor, report, advance
        self._vocab_size, self._most = g.vocab_size, min(g.verify_rows, g.max_outputs)
        self._lab, self._random = Lab(executor, 1), random.Random(23)
        self._texts = [token_ids(40 + lane, g.vocab_size, seed=lane + 1) for lane in range(g.max_lanes)]

    def run(self) -> Report:
        """All buckets, one after another."""
        counts = {rows for kind, _, rows in self._executor.entries if kind is Kind.SAMPLE and rows} or {self._most}
        for num_rows in sorted(counts):
            self._advance(f"draws of {num_rows} rows")
            for turn in range(TURNS):
                self._turn(min(num_rows, self._most), turn)
        return self._report

    def _turn(self, num_rows: int, turn: int) -> None:
        """One pass from the beginning of a text; every second one also brings ids that texts have more of."""
        ids = token_ids(num_rows, self._vocab_size, seed=self._random.randrange(2**31))
        rows = extend_rows([Span(0, 0, ids, outputs=num_rows)], self._lab.table, self._lab.slots)
        wanted = [None if turn == 1 and i % 3 == 1 else self._row() for i in range(num_rows)]
        whole = [(lane, self._text(text, None).seen(self._vocab_size)) for lane, text in enumerate(self._texts)]
        fresh = [(self._random.randrange(len(self._texts)), token) for token in ids[:MOST_FRESH] if turn % 2]
        for lane, token in fresh:
            self._texts[lane] = [*self._texts[lane], token]
        table = np.zeros((num_rows, WISH), np.int64)
        for line, row in zip(table, wanted, strict=True):
            line[Wish.LANE] = -1
            if row is not None:
                line[:] = wish_row(row.lane, row.sampling, row.penalties, row.seed, self._vocab_size)
                line[Wish.POSITION] = row.position
        wishes = Wishes(table, [[] if row is None else row.said for row in wanted], whole, fresh)
        rows.wishes = lambda: wishes
        drawn = self._executor.run(Kind.EXTEND, rows).drawn
        for i, row in enumerate(wanted):
            host = -1 if row is None else self._drawn(row, self._executor.logits(i))
            self._report.compare(f"draw, row {i} of {num_rows}: {row or 'none'}", str(drawn[i]), str(host))

    def _row(self) -> _Row:
        chance = self._random
        sampling = Sampling(
            chance.choice(TEMPERATURES),
            top_p=chance.choice(TOP_PS),
            top_k=chance.choice(TOP_KS),
            min_p=chance.choice(MIN_PS),
        )
        penalties = chance.choice(PENALTIES)
        said = [chance.randrange(self._vocab_size) for _ in range(chance.randrange(MAX_TREE_ROWS))]
        where = chance.randrange(len(self._texts)), chance.randrange(2**64), chance.randrange(2**20)
        return _Row(where[0], sampling, penalties, *where[1:], said if penalties else [])

    def _text(self, text: Sequence[int], penalties: Penalties | None) -> PenalizedText:
        """A text whose first half is the prompt, with some of it said again."""
        made = PenalizedText(penalties or Penalties(presence=1.0), text[:20], ())
        made.extend([*text[20:], *text[10:25]])
        return made

    def _drawn(self, row: _Row, logits: np.ndarray) -> int:
        """The host's id."""
        if row.penalties is not None:
            logits = self._text(self._texts[row.lane], row.penalties).applied(logits, row.said)
        return draw(logits, row.sampling, row.seed, row.position)
