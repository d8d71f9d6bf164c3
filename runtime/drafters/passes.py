"""Passes of a model drafter over an executor: built of spans, priced and counted, their guesses read with care.

Knows nothing of which spans are due.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tandem.keys import Kind
from tandem.runtime.drafters.mtp import Options
from tandem.runtime.executor.base import DraftOutcome, Executor
from tandem.runtime.meter import Meter
from tandem.runtime.pages import PageTable
from tandem.runtime.rows import DraftSpan, draft_rows

ROUNDING = 1e-3
"""By how much a logit may be above the log of the sum of all exponentials, both being rounded."""


class Prices(Protocol):
    """Knows what passes cost, and learns it."""

    def ms(self, context: int, kind: Kind, rows: int) -> float: ...

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None: ...


class DraftPasses:
    """Runs spans of several lanes, whose pages stand in `pages`, in one pass each time: at most `max_rows` rows."""

    def __init__(self, executor: Executor, pages: PageTable, prices: Prices, meter: Meter) -> None:
        self._executor, self._pages, self._prices, self._meter = executor, pages, prices, meter
        self.max_rows, self._vocab_size = executor.geometry.max_rows, executor.geometry.vocab_size

    def sync(self, spans: Sequence[DraftSpan]) -> None:
        """The drafter reads these rows."""
        self._run(Kind.SYNC, spans)

    def draft(self, spans: Sequence[DraftSpan]) -> list[Options]:
        """The same, and what it guesses behind the last row of each; nothing where that is no guess."""
        outcome = self._run(Kind.DRAFT, spans)
        given = zip(outcome.token.tolist(), outcome.logit.tolist(), outcome.lse.tolist(), strict=True)
        return [_options(tokens, logits, lse, self._vocab_size) for tokens, logits, lse in given]

    def _run(self, kind: Kind, spans: Sequence[DraftSpan]) -> DraftOutcome:
        rows = draft_rows(kind, spans, self._pages.table)
        outcome = self._executor.draft(kind, rows)
        self._prices.observe(max(rows.position), kind, len(rows.token), outcome.ms)
        self._meter.draft_passes.add(kind)
        self._meter.draft_rows.add(kind, len(rows.token))
        self._meter.draft_seconds.add(kind, outcome.ms / 1e3)
        return outcome


def _options(tokens: list[int], logits: list[float], lse: float, vocab_size: int) -> Options:
    """Tokens with their probabilities; none at all where one is out of the vocabulary or a number is none."""
    sound = math.isfinite(lse) and all(logit <= lse + ROUNDING for logit in logits)
    if not sound or min(tokens) < 0 or max(tokens) >= vocab_size:
        return []
    return [(token, math.exp(min(logit - lse, 0.0))) for token, logit in zip(tokens, logits, strict=True)]
