"""How an MTP layer drafts: chains of guesses, all lanes' side by side, a pass for each depth as long as another pays.

Knows nothing of which lanes draft, of the ring's other rows or of texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tandem.keys import Kind
from tandem.runtime.drafters.base import MTP
from tandem.runtime.drafters.mtp import MtpDrafter, Options
from tandem.runtime.drafters.passes import DraftPasses, Prices
from tandem.runtime.drafters.prob_deciles import ProbDeciles
from tandem.runtime.drafters.reader import Seat
from tandem.runtime.drafters.taps import TapRing
from tandem.runtime.executor.base import DraftOutcome
from tandem.runtime.rows import DraftSpan

CHAIN = 4
"""The deepest chain."""
ROUNDING = 1e-3
"""By how much a logit may be above the log of the sum of all exponentials, both being rounded."""


class Chains:
    """`lose` hears of drafters whose layer gave what is no guess."""

    source, kept = MTP, 1

    def __init__(self, passes: DraftPasses, ring: TapRing, prices: Prices, lose: Callable[[MtpDrafter], None]) -> None:
        self._passes, self._ring, self._prices, self._lose = passes, ring, prices, lose
        self._deciles = ProbDeciles()

    def drafter(self, lane: int) -> MtpDrafter:
        return MtpDrafter(lane, self._ring.claim, self._deciles)

    def depth(self, share: int) -> int:
        return min(CHAIN, share)

    def paying(self, seats: Sequence[Seat[MtpDrafter]], num_lanes: int) -> Sequence[Seat[MtpDrafter]]:
        """All: what a chain is worth is known when it has begun."""
        return seats

    def draft(self, seats: Sequence[Seat[MtpDrafter]], num_lanes: int) -> None:
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

    def _deepened(
        self, seats: Sequence[Seat[MtpDrafter]], spans: Sequence[DraftSpan], stake: Stake, depth: int
    ) -> Sequence[Seat[MtpDrafter]]:
        """Guesses of this depth behind `spans`; those of `seats` that another pass is for, none if it does not pay."""
        going, hope = list[Seat[MtpDrafter]](), 0.0
        for seat, options in zip(seats, options_of(self._passes.draft(spans), self._passes.vocab_size), strict=True):
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

    def _own(self, seat: Seat[MtpDrafter], turn: int) -> int:
        return self._ring.own(seat.drafter.lane, turn)


def options_of(outcome: DraftOutcome, vocab_size: int) -> list[Options]:
    """Tokens with their probabilities, of each output; none at all where one is out of the vocabulary or a number is
    none."""
    given = zip(outcome.token.tolist(), outcome.logit.tolist(), outcome.lse.tolist(), strict=True)
    return [_options(tokens, logits, lse, vocab_size) for tokens, logits, lse in given]


def _options(tokens: list[int], logits: list[float], lse: float, vocab_size: int) -> Options:
    sound = math.isfinite(lse) and all(logit <= lse + ROUNDING for logit in logits)
    if not sound or min(tokens) < 0 or max(tokens) >= vocab_size:
        return []
    return [(token, math.exp(min(logit - lse, 0.0))) for token, logit in zip(tokens, logits, strict=True)]


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
