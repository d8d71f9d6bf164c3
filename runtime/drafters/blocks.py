"""How a block drafter drafts: the blocks of all lanes side by side in one pass, in several where one is too small.

Knows nothing of which lanes draft, of the ring or of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tandem.artifacts.io import BlockGeometry
from tandem.keys import Kind
from tandem.runtime.drafters.base import BLOCK
from tandem.runtime.drafters.block import BlockDrafter, Guessed
from tandem.runtime.drafters.passes import DraftPasses, Prices
from tandem.runtime.drafters.reach import Reach
from tandem.runtime.drafters.reader import Claim, Seat
from tandem.runtime.executor.base import DraftOutcome

KEEP = 0.99
"""Of what all texts taught, each round."""
SHARES = 2
"""A lane's tree has so many times the nodes at most that are its even share of a verify: there is hardly ever room for
more, and each is paid for where trees are built and cut."""


class Blocks:
    """Drafts in blocks of `block` at most `max_rows` rows a verify. `lose` hears of drafters whose model gave what is
    no lattice.
    """

    source, kept = BLOCK, 0

    def __init__(
        self,
        passes: DraftPasses,
        block: BlockGeometry,
        max_rows: int,
        prices: Prices,
        claim: Claim,
        lose: Callable[[BlockDrafter], None],
    ) -> None:
        self._passes, self._block, self._prices, self._claim, self._lose = passes, block, prices, claim, lose
        self._slots, self._max_rows = block.rows - 1, max_rows
        self._usual = Reach(keep=KEEP)

    def drafter(self, lane: int) -> BlockDrafter:
        return BlockDrafter(lane, self._claim, self._usual)

    def depth(self, share: int) -> int:
        return self._slots if share > 0 else 0

    def paying(self, seats: Sequence[Seat[BlockDrafter]], num_lanes: int) -> Sequence[Seat[BlockDrafter]]:
        """The likeliest that raise what the round brings a millisecond, if all rows that it verifies were to be right.

        Where not even that is more than the plain step brings, none. What else it is worth is the router's to say.
        """
        hopes = [(seat.drafter.reach.expected(seat.depth), seat) for seat in seats]
        hopes.sort(key=lambda pair: pair[0], reverse=True)
        context = max(len(seat.drafter.ids) for seat in seats)
        count, best, gained = 0, num_lanes / self._prices.ms(context, Kind.EXTEND, num_lanes), 0.0
        for number, (hope, _) in enumerate(hopes, 1):
            gained = min(gained + hope, self._max_rows - num_lanes)
            value = (num_lanes + gained) / self._ms(context, number, num_lanes, round(gained) or 1)
            if value > best:
                count, best = number, value
        return [seat for _, seat in hopes[:count]]

    def draft(self, seats: Sequence[Seat[BlockDrafter]], num_lanes: int) -> None:
        most, nodes = self._passes.draft_lanes, max(self._slots, SHARES * (self._max_rows - num_lanes) // num_lanes)
        for begin in range(0, len(seats), most):
            some = seats[begin : begin + most]
            outcome = self._passes.draft_blocks([seat.drafter for seat in some], self._block)
            for place, seat in enumerate(some):
                if guessed := self._guessed(outcome, place, seat.depth):
                    seat.drafter.guess(guessed, nodes)
                else:
                    self._lose(seat.drafter)

    def _ms(self, context: int, num_blocks: int, num_lanes: int, drafted: int) -> float:
        """A round that drafts so many blocks and verifies so many rows of them, whose taps the next draft reads."""
        ms, rows, (whole, rest) = self._prices.ms, self._block.rows, divmod(num_blocks, self._passes.draft_lanes)
        drafts = whole * ms(context, Kind.DRAFT, self._passes.draft_lanes * rows) if whole else 0.0
        drafts += ms(context, Kind.DRAFT, rest * rows) if rest else 0.0
        read = ms(context, Kind.SYNC, num_blocks + drafted)
        return drafts + read + ms(context, Kind.VERIFY_CHAIN, num_lanes + drafted)

    def _guessed(self, outcome: DraftOutcome, place: int, depth: int) -> Guessed | None:
        """The block in `place` of a pass, `depth` slots of it; None where it is no lattice."""
        score, walk = outcome.score, outcome.walk
        assert score is not None and walk is not None, "a block drafter gives both"
        slots = slice(place * self._slots, (place + 1) * self._slots)
        candidates, scores, taken = outcome.token[slots], score[slots], walk[slots].tolist()
        sound = 0 <= min(taken) <= max(taken) < candidates.shape[1]
        if not sound or candidates.min() < 0 or candidates.max() >= self._passes.vocab_size:
            return None
        if not np.isfinite(scores.sum(dtype=np.float64)):
            return None
        return Guessed(candidates[:depth], scores[:depth], taken[:depth])
