"""A drafter driven row by row over the lanes of a lab: what its guesses are, as digests.

Rows of the ring of taps are given by whoever drives it. Knows nothing of whether guesses are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab, digest
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tandem.runtime.rows import DraftSpan, block_rows, draft_rows


class DraftLab:
    """Passes of the drafter of `lab`'s executor. The row at a position is given a tap, and the token that its drafter
    takes there: of chains the one behind it."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def sync(self, lane: int, tokens: Sequence[int], start: int, taps: Sequence[int]) -> None:
        """Brings rows from position `start` on up to date, as many in a pass as it takes."""
        step = self._lab.executor.geometry.max_rows
        for i in range(0, len(tokens), step):
            span = DraftSpan(lane, start + i, tokens[i : i + step], taps[i : i + step])
            self._run(draft_rows(Kind.SYNC, [span], self._lab.table), Kind.SYNC)

    def guesses(self, lane: int, tokens: Sequence[int], start: int, taps: Sequence[int]) -> list[str]:
        """Digests of the guesses of as many of the last rows as a pass gives."""
        rows = draft_rows(Kind.DRAFT, [DraftSpan(lane, start, tokens, taps)], self._lab.table)
        rows.output_row = range(max(0, len(tokens) - self._lab.executor.geometry.max_outputs), len(tokens))
        return digests(self._run(rows))

    def chains(self, spans: Sequence[DraftSpan], length: int) -> list[list[str]]:
        """Digests of `length` guesses in a line behind each of `spans`, all drafted together, by span.

        Each chain goes on from the tap that its span's last row leaves, and leaves its own there.
        """
        outcome = self._run(draft_rows(Kind.DRAFT, spans, self._lab.table))
        found = [[bits] for bits in digests(outcome)]
        ends = [span.start + len(span.tokens) for span in spans]
        for step in range(length - 1):
            guessed = zip(spans, outcome.token[:, 0].tolist(), ends, strict=True)
            line = [DraftSpan(s.lane, end + step, [token], [s.tap_out], s.tap_out) for s, token, end in guessed]
            outcome = self._run(draft_rows(Kind.DRAFT, line, self._lab.table))
            for bits, more in zip(found, digests(outcome), strict=True):
                bits.append(more)
        return found

    def blocks(self, lanes: Sequence[int], starts: Sequence[int], anchors: Sequence[int]) -> list[str]:
        """A digest for the block of each lane, all drafted together, behind an anchor at position `starts`."""
        bits = self.slots(lanes, starts, anchors)
        each = len(bits) // len(lanes)
        return [digest("".join(bits[i : i + each]).encode()) for i in range(0, len(bits), each)]

    def slots(self, lanes: Sequence[int], starts: Sequence[int], anchors: Sequence[int]) -> list[str]:
        """The same of each guessed token, lane by lane."""
        drafter = self._lab.executor.geometry.drafter
        assert drafter is not None and drafter.block is not None
        return digests(self._run(block_rows(lanes, starts, anchors, drafter.block, self._lab.table)))

    def _run(self, rows: DraftRows, kind: Kind = Kind.DRAFT) -> DraftOutcome:
        return self._lab.executor.draft(kind, rows)


def digests(outcome: DraftOutcome) -> list[str]:
    """One for each output row: its tokens, their logits and the sum, of a block also its scores and its walk."""
    fields = (outcome.token, outcome.logit, outcome.lse, outcome.score, outcome.walk)
    rows = zip(*(field for field in fields if field is not None), strict=True)
    return [digest(b"".join(part.tobytes() for part in row)) for row in rows]
