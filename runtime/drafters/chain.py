"""Chains of guesses, all lanes' side by side: a pass for each depth, as long as another one pays.

Knows nothing of which lanes draft, of the ring's other rows or of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.keys import Kind
from tandem.runtime.drafters.mtp import MtpDrafter
from tandem.runtime.drafters.passes import DraftPasses, Prices
from tandem.runtime.drafters.taps import TapRing
from tandem.runtime.rows import DraftSpan

CHAIN = 4
"""The deepest chain."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A drafter and how deep its chain may be, at least 1."""

    drafter: MtpDrafter
    depth: int


class Chains:
    """`lose` hears of drafters whose layer gave what is no guess."""

    def __init__(self, passes: DraftPasses, ring: TapRing, prices: Prices, lose: Callable[[MtpDrafter], None]) -> None:
        self._passes, self._ring, self._prices, self._lose = passes, ring, prices, lose

    def draft(self, seats: Sequence[Seat], num_lanes: int) -> None:
        """Guesses for each of `seats`, of a round of `num_lanes`. All that is pending fits in a pass."""
        stake = Stake(self._prices, max(len(seat.drafter.ids) for seat in seats), num_lanes)
        spans = [seat.drafter.backlog(len(seat.drafter.pending), self._own(seat, 0)) for seat in seats]
        going = self._deepened(seats, spans, stake, 1)
        for seat in seats:
            self._ring.give(seat.drafter.read(len(seat.drafter.pending)))
        for turn in range(1, CHAIN):
            if not going:
                return
            spans = [seat.drafter.ahead(self._own(seat, turn - 1), self._own(seat, turn)) for seat in going]
            going = self._deepened(going, spans, stake, turn + 1)

    def _deepened(self, seats: Sequence[Seat], spans: Sequence[DraftSpan], stake: Stake, depth: int) -> list[Seat]:
        """Guesses of this depth behind `spans`; those of `seats` that another pass is for, none if it does not pay."""
        going, hope = list[Seat](), 0.0
        for seat, options in zip(seats, self._passes.draft(spans), strict=True):
            if not options:
                self._lose(seat.drafter)
                continue
            reach = seat.drafter.guess(options)
            stake.gained += reach
            if depth < seat.depth:
                going.append(seat)
                hope += reach * options[0][1]  # as if the next were as sure as this one
        stake.paid(len(spans))
        return going if going and stake.raised_by(hope, len(going)) else []

    def _own(self, seat: Seat, turn: int) -> int:
        return self._ring.own(seat.drafter.lane, turn)


class Stake:
    """What a round is worth so far: `gained` is how many drafted tokens are expected to be right."""

    def __init__(self, prices: Prices, context: int, num_lanes: int) -> None:
        self._prices, self._context, self._num_lanes = prices, context, num_lanes
        self._known: dict[tuple[Kind, int], float] = {}
        self._rows, self._spent, self.gained = num_lanes, 0.0, 0.0

    def paid(self, rows: int) -> None:
        """A draft pass that guessed behind `rows` rows; what it read besides would have been read some time."""
        self._spent += self._ms(Kind.DRAFT, rows)
        self._rows += rows

    def raised_by(self, hope: float, rows: int) -> bool:
        """Whether another pass for `rows` guesses, `hope` of them right, gives more tokens a millisecond."""
        lanes, now = self._num_lanes, self._ms(Kind.VERIFY_CHAIN, self._rows)
        more = self._ms(Kind.DRAFT, rows) + self._ms(Kind.VERIFY_CHAIN, self._rows + rows) - now
        best = max(lanes / self._ms(Kind.EXTEND, lanes), (lanes + self.gained) / (now + self._spent))
        return hope > best * more

    def _ms(self, kind: Kind, rows: int) -> float:
        if (kind, rows) not in self._known:
            self._known[kind, rows] = self._prices.ms(self._context, kind, rows)
        return self._known[kind, rows]
