"""Proves the entries of a drafter that guesses blocks where each row count has a program, as `proof_entries` does a
model's: syncs of every size, and drafts of every number of lanes at both ends of the context.

Against syncs of one row and blocks alone. Which tap a row reads is chosen here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.keys import Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import token_ids
from tandem.runtime.checks.proof_draft_entries import Places

OFFSETS = (0, 31, 7, 64, 1, 50, 3, 20)
"""Where blocks begin on their pages, as far as these go."""


class Pages(Places, Protocol):
    """What the pages of the pool hold besides: a text, and those that are free."""

    filled: Sequence[int]
    free: Sequence[int]


class BlockEntriesProof:
    """Over the text that `pages` holds."""

    def __init__(self, pages: Pages) -> None:
        drafter = pages.geometry.drafter
        assert drafter is not None and drafter.block is not None
        self._pages, self._lab, self._drafts, self._block = pages, pages.lab, DraftLab(pages.lab), drafter.block
        self._text = pages.text[: min(drafter.tap_rows, self._block.context_length - self._block.rows)]

    def run(self) -> None:
        self._pages.advance(f"blocks behind syncs of every size over {len(self._text)} tokens")
        self._fill()
        self._syncs()
        lanes = [rows // self._block.rows for rows in self._pages.rows(Kind.DRAFT, 0)]
        page_tokens = self._pages.geometry.page_tokens
        last = (self._block.context_length - self._block.rows) // page_tokens
        for first, step, where in ((0, 1, "at the beginning"), (last, -1, "at the end")):
            self._pages.advance(f"blocks of many lanes, {where}")
            count = min(max(lanes), len(self._pages.free), last + 1)
            if count and self._pages.filled:
                self._joint([first + step * lane for lane in range(count)], lanes, where)

    def _fill(self) -> None:
        """The text's taps lie in the rows of their own positions."""
        self._lab.table, step = self._pages.row, self._pages.geometry.max_rows
        for begin in range(0, len(self._text), step):
            chunk = self._text[begin : begin + step]
            self._lab.extend(0, chunk, begin, 1, range(begin, begin + len(chunk)))

    def _syncs(self) -> None:
        wanted = self._behind(1)
        for size in self._pages.rows(Kind.SYNC, 0):
            self._drafts.sync(0, self._text, 0, range(len(self._text))[::-1])  # other rows' K and V
            for place, (bits, right) in enumerate(zip(self._behind(size), wanted, strict=True)):
                self._pages.report.compare(f"blocks behind syncs of {size} rows, block {place}", bits, right)

    def _behind(self, size: int) -> list[str]:
        """Digests of blocks over the whole text, from its end down, once it is synced by `size` rows."""
        text, rows = self._text, self._block.rows
        for begin in range(0, len(text), size):
            part = text[begin : begin + size]
            self._drafts.sync(0, part, begin, range(begin, begin + len(part)))
        starts = range(len(text) - 1, -1, -rows)
        return [self._drafts.blocks([0], [start], [text[start]])[0] for start in starts]

    def _joint(self, blocks: Sequence[int], counts: Sequence[int], where: str) -> None:
        """A lane for each of `blocks`, the page that its rows lie on; below it lie pages of the text."""
        pages, g = self._pages, self._pages.geometry
        table, starts = pages.row.repeat(len(blocks), axis=0), list[int]()
        for lane, block in enumerate(blocks):
            table[lane, :block] = [pages.filled[(lane + i) % len(pages.filled)] for i in range(block)]
            table[lane, block] = pages.free[lane]
            first, end = block * g.page_tokens, min((block + 1) * g.page_tokens, self._block.context_length)
            starts.append(min(first + OFFSETS[lane % len(OFFSETS)], end - self._block.rows))
        self._lab.table = table
        for lane, (block, start) in enumerate(zip(blocks, starts, strict=True)):
            first = block * g.page_tokens
            taps = [(7 * i + lane) % len(self._text) for i in range(start - first)]
            self._drafts.sync(lane, token_ids(len(taps), g.vocab_size, seed=lane), first, taps)
        anchors = token_ids(len(blocks), g.vocab_size, seed=3)
        alone = [self._drafts.blocks([i], [starts[i]], [anchors[i]])[0] for i in range(len(blocks))]
        for count in (count for count in counts if count <= len(blocks)):
            group = range(len(blocks) - count, len(blocks))
            found = self._drafts.blocks(group, [starts[i] for i in group], [anchors[i] for i in group])
            for lane, bits in zip(group, found, strict=True):
                pages.report.compare(f"blocks of {count} lanes {where}: lane {lane}", bits, alone[lane])
