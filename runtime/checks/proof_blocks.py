"""The proof of drafters that guess a block: over syncs cut in any way, between syncs, and beside blocks of other lanes.

Knows nothing of whether guesses are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.runtime.checks.proof_drafts import TEXT, DraftsProof

CUTS = (2, 7, 33, 64, TEXT)
PLACES = (0, 1, 2, 9, 31, 50, 62, 63, 64, 65, 80)
"""Where blocks are drafted, beside a text's end: their rows lie on one page, on two, and at the borders of both."""


class BlocksProof(DraftsProof):
    """Of blocks that see what was synced below them, whatever lies above."""

    def guesses(self, text: Sequence[int], taps: Sequence[int], size: int) -> list[str]:
        """From the last place down: what a block leaves is above the next one's context."""
        for begin in range(0, len(text), size):
            self.drafts.sync(0, text[begin : begin + size], begin, taps[begin : begin + size])
        found = [""] * len(text)
        for place in reversed(self._places(text)):
            found[place] = self._block(0, text, place)
        return found

    def cuts(self, text: Sequence[int], taps: Sequence[int], wanted: Sequence[str]) -> None:
        """Syncs of many rows, then blocks between them: what a block left is written over as the text goes on."""
        before = self.lab.state(0, len(text))
        for size in (cut for cut in CUTS if cut <= self.max_rows):
            self._spoil(text, taps)
            self.compare(f"blocks behind syncs of {size} rows", self.guesses(text, taps, size), wanted)
        self._spoil(text, taps)
        found, synced = [""] * len(text), 0
        for place in self._places(text):
            self.drafts.sync(0, text[synced:place], synced, taps[synced:place])
            found[place], synced = self._block(0, text, place), place
        self.compare("blocks between syncs", found, wanted)
        self.report.compare("blocks: the model's state", self.lab.state(0, len(text)), before)

    def lanes(self, wanted: Sequence[str]) -> None:
        """Blocks of each lane alone, then with as many others as a pass has room for, at each place in it."""
        starts, count = list[int](), len(self.texts)
        for lane, text in enumerate(self.texts):
            taps = range(lane * len(text), (lane + 1) * len(text))
            for begin in range(0, len(text), self.max_rows):
                chunk = text[begin : begin + self.max_rows]
                self.lab.extend(lane, chunk, begin, 1, taps[begin : begin + len(chunk)])
            self.drafts.sync(lane, text, 0, taps)
            starts.append(len(text) - 1 - 3 * lane)
        alone = [self._block(lane, text, starts[lane]) for lane, text in enumerate(self.texts)]
        self.report.compare("block of lane 0, its taps elsewhere", alone[0], wanted[starts[0]])
        for first in range(count):
            group = [(first + i) % count for i in range(min(count, self.lab.executor.geometry.draft_lanes))]
            anchors = [self.texts[lane][starts[lane]] for lane in group]
            found = self.drafts.blocks(group, [starts[lane] for lane in group], anchors)
            for lane, bits in zip(group, found, strict=True):
                self.report.compare(f"block of lane {lane} among lanes {group}", bits, alone[lane])

    def _block(self, lane: int, text: Sequence[int], place: int) -> str:
        (bits,) = self.drafts.blocks([lane], [place], [text[place]])
        return bits

    def _places(self, text: Sequence[int]) -> list[int]:
        return sorted({min(place, len(text) - 1) for place in (*PLACES, len(text) - 1)})

    def _spoil(self, text: Sequence[int], taps: Sequence[int]) -> None:
        """Other rows' K and V in every slot, so that a sync has something to put right."""
        self.drafts.sync(0, text, 0, taps[::-1])
