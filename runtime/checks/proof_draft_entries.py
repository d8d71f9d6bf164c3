"""Proves a drafter's entries where each context class and row count has a program, as `proof_entries` does a model's.

Against drafts of one row; before each, other tokens' K and V lie where the rows write theirs. Which tap a row reads is
chosen here: whether it is the right one is no affair of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.drafting import DraftLab, digests
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.proof import Report
from tandem.runtime.rows import DraftSpan, draft_rows

NEAR, HALF = 17, MAX_TREE_ROWS // 2
"""Position of the lane beside one that is far, and the rows of each in a joint pass."""
FEW = 5
"""Rows in front of a chain."""


class Places(Protocol):
    """Knows which entries there are, and lays out lanes whose rows meet them."""

    lab: Lab
    geometry: Geometry
    report: Report
    advance: Callable[[str], None]
    text: Sequence[int]
    row: np.ndarray

    @property
    def two(self) -> bool: ...

    def rows(self, kind: Kind, bound: int) -> list[int]: ...

    def places(self) -> Iterator[tuple[int, int]]: ...

    def head(self, start: int) -> int: ...

    def place(self, first: int, lanes: int) -> None: ...


class DraftEntriesProof:
    """Drafts and syncs of every size over one text, then drafts of every row count at both ends of every class."""

    def __init__(self, places: Places) -> None:
        drafter = places.geometry.drafter
        assert drafter is not None
        self._places, self._lab, self._draft = places, places.lab, DraftLab(places.lab)
        self._text = places.text[: drafter.tap_rows]
        self._max_rows, self._outputs = places.geometry.max_rows, places.geometry.max_outputs

    def run(self) -> None:
        if len(self._text) > 1:
            self._places.advance(f"drafts and syncs of every size over {len(self._text)} tokens")
            self._sizes()
        for start, bound in self._places.places():
            self._places.advance(f"drafts of every row count at {start} tokens")
            self._window(start, bound)

    def _sizes(self) -> None:
        """The text's taps lie in the rows of their own positions; its last token has no row behind it."""
        self._lab.table, text, step = self._places.row, self._text, self._max_rows
        for begin in range(0, len(text), step):
            chunk = text[begin : begin + step]
            self._lab.extend(0, chunk, begin, 1, range(begin, begin + len(chunk)))
        known = text[1:]
        wanted = self._alone(known, 0, range(len(known)))
        for size in self._places.rows(Kind.DRAFT, 0):
            self._spoil(known, 0)
            found = list[str]()
            for begin in range(0, len(known), size):
                tokens = known[begin : begin + size]
                bits = self._draft.guesses(0, tokens, begin, range(begin, begin + len(tokens)))
                found += [""] * (len(tokens) - len(bits)) + bits
            self._compare(f"drafts of {size} rows", found, wanted)
        head = max(0, len(known) - self._outputs)
        for size in self._places.rows(Kind.SYNC, 0):
            self._spoil(known, 0)
            for begin in range(0, head, size):
                tokens = known[begin : min(begin + size, head)]
                self._draft.sync(0, tokens, begin, range(begin, begin + len(tokens)))
            found = self._draft.guesses(0, known[head:], head, range(head, len(known)))
            self._compare(f"drafts behind syncs of {size} rows", found, wanted[head:])

    def _window(self, start: int, bound: int) -> None:
        """Drafts that begin at `start`; below it lie pages of the text, and a few of its own."""
        places, head, g = self._places, self._places.head(start), self._places.geometry
        places.place(head, 2 if places.two else 1)
        tokens = token_ids(start - head + MAX_TREE_ROWS, g.vocab_size, seed=start + 1)
        below, line = tokens[:-MAX_TREE_ROWS], tokens[-MAX_TREE_ROWS:]
        if below:
            self._draft.sync(0, below, head, self._taps(below))
        counts, taps = places.rows(Kind.DRAFT, bound), self._taps(line)
        wanted = self._alone(line[: max(counts, default=1)], start, taps)
        where = f"at {start} tokens, class {bound}"
        for num_rows in counts:
            self._spoil(line[:num_rows], start)
            found = self._draft.guesses(0, line[:num_rows], start, taps[:num_rows])
            self._compare(f"{where}: drafts of {num_rows} rows", found, wanted)
        if places.two:
            self._beside(where, DraftSpan(0, start, line[:HALF], taps[:HALF]), wanted)
        self._line(where, DraftSpan(0, start, line[:FEW], taps[:FEW], len(self._text) - 1))

    def _beside(self, where: str, far: DraftSpan, wanted: Sequence[str]) -> None:
        """A joint pass with a lane that is near: the far one picks the class for both."""
        text = token_ids(NEAR + HALF, self._places.geometry.vocab_size, seed=6)
        taps = self._taps(text)
        alone = self._alone(text, 0, taps, lane=1)[NEAR:]
        spans = [far, DraftSpan(1, NEAR, text[NEAR:], taps[NEAR:])]
        rows = draft_rows(Kind.DRAFT, spans, self._lab.table)
        rows.output_row = range(len(rows.token))
        found = digests(self._lab.executor.draft(Kind.DRAFT, rows))
        self._compare(f"{where}: joint drafts, this lane", found[:HALF], wanted)
        self._compare(f"{where}: joint drafts, the lane at {NEAR}", found[HALF:], alone)

    def _line(self, where: str, span: DraftSpan) -> None:
        """A chain that the executor makes by itself, where it makes any; near a border it goes on to another class."""
        drafter = self._places.geometry.drafter
        if drafter is not None and drafter.chain > 1:
            (wanted,) = self._draft.chains([span], drafter.chain)
            self._spoil(range(FEW + drafter.chain), span.start)
            (found,) = self._draft.lines([span], drafter.chain)
            self._compare(f"{where}: chain by itself", found, wanted)

    def _alone(self, tokens: Sequence[int], start: int, taps: Sequence[int], lane: int = 0) -> list[str]:
        """Digests of a row's guesses, row by row."""
        return [self._draft.guesses(lane, [token], start + i, taps[i : i + 1])[0] for i, token in enumerate(tokens)]

    def _spoil(self, tokens: Sequence[int], start: int) -> None:
        """Other tokens' K and V where `tokens` have theirs."""
        others = [(token + 1) % self._places.geometry.vocab_size for token in tokens]
        for begin in range(0, len(others), self._max_rows):
            part = others[begin : begin + self._max_rows]
            self._draft.guesses(0, part, start + begin, self._taps(part))

    def _taps(self, tokens: Sequence[int]) -> list[int]:
        """A row of the ring that is filled for each of `tokens`."""
        return [7 * i % len(self._text) for i in range(len(tokens))]

    def _compare(self, what: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        """Place by place; what no pass gave is "" and not compared."""
        for i, (bits, right) in enumerate(zip(found, wanted, strict=False)):
            if bits:
                self._places.report.compare(f"{what}, row {i}", bits, right)
