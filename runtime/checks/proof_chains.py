"""The proof of drafters that guess a token a row: drafts of many rows, behind syncs, and as chains of several lanes.

Knows nothing of whether guesses are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.runtime.checks.proof_drafts import MOST_LANES, TEXT, DraftsProof
from tandem.runtime.rows import DraftSpan

CUTS = (1, 2, 7, 33, TEXT)
CHAIN = 4


class ChainsProof(DraftsProof):
    """Of rows that read a tap each: the last token of a text has none behind it."""

    def guesses(self, text: Sequence[int], taps: Sequence[int], size: int) -> list[str]:
        """By drafts of `size` rows."""
        found, outputs = list[str](), min(size, self.outputs)
        for begin in range(0, len(text) - 1, size):
            tokens = text[begin + 1 : begin + 1 + size]
            bits = self.drafts.guesses(0, tokens, begin, taps[begin : begin + len(tokens)])
            found += [""] * max(0, len(tokens) - outputs) + bits
        return found

    def cuts(self, text: Sequence[int], taps: Sequence[int], wanted: Sequence[str]) -> None:
        """Drafts of many rows, and drafts behind a sync, which spoilt rows cannot pass for."""
        before = self.lab.state(0, len(text))
        for size in (cut for cut in CUTS if cut <= self.max_rows):
            self._spoil(text, taps)
            self.compare(f"drafts of {size} rows", self.guesses(text, taps, size), wanted)
            self._spoil(text, taps)
            head = len(text) - 1 - min(self.outputs, (len(text) - 1) // 2)
            for begin in range(0, head, size):
                tokens = text[begin + 1 : min(begin + size, head) + 1]
                self.drafts.sync(0, tokens, begin, taps[begin : begin + len(tokens)])
            found = self.drafts.guesses(0, text[head + 1 :], head, taps[head : len(text) - 1])
            self.compare(f"drafts behind syncs of {size} rows", found, wanted[head:])
        self.report.compare("drafts: the model's state", self.lab.state(0, len(text)), before)

    def _spoil(self, text: Sequence[int], taps: Sequence[int]) -> None:
        """Other tokens' K and V in every slot, by drafts, so that a sync has something to put right."""
        others = text[:0:-1]
        for begin in range(0, len(others), self.max_rows):
            tokens = others[begin : begin + self.max_rows]
            self.drafts.guesses(0, tokens, begin, taps[begin : begin + len(tokens)])

    def lanes(self, wanted: Sequence[str]) -> None:
        """Chains alone and beside others; rows of a text overwrite those of a chain."""
        spans = list[DraftSpan]()
        for lane, text in enumerate(self.texts):
            taps = [lane * len(text) + i for i in range(len(text))]
            for begin in range(0, len(text), self.max_rows):
                chunk = text[begin : begin + self.max_rows]
                self.lab.extend(lane, chunk, begin, 1, taps[begin : begin + len(chunk)])
            start = len(text) - 5 - CHAIN - 3 * lane
            self.drafts.sync(lane, text[1 : start + 1], 0, taps[:start])
            out = self.ring - MOST_LANES + lane
            spans.append(DraftSpan(lane, start, text[start + 1 : start + 6], taps[start : start + 5], out))
        alone = [self.drafts.chains([span], CHAIN)[0] for span in spans]
        for lane, bits in enumerate(self.drafts.chains(spans, CHAIN)):
            self.compare(f"chain of lane {lane} beside {len(spans) - 1} others", bits, alone[lane])
        # What a chain guessed lies where the text goes on, whose rows come in its place.
        text, start = self.texts[0], spans[0].start
        again = self.drafts.guesses(0, text[start + 1 :], start, range(start, len(text) - 1))
        self.compare("drafts in place of a chain", again, wanted[start:])
