"""What drafted rounds and plain steps really cost a token, and whether drafting has to prove itself first.

Prices and probabilities can both be wrong in a way no table shows; wall time per committed token cannot. Knows
nothing of trees.
"""

from __future__ import annotations

from dataclasses import dataclass

KEEP = 0.9  # of the old sums, each round
KEEP_PROBED = 0.5  # by a probe, which has to outweigh rounds long past
FADE = 0.999  # of the drafted sums, each plain round: one slow spell does not keep a class plain for good
PRIOR_TOKENS = 4.0
OUTLIER = 4.0  # a round counts as at most this many times what its tokens cost until now
MARGIN = 1.03  # drafting loses when dearer than plain by more than noise
FIRST_WAIT, LAST_WAIT = 16, 256  # plain rounds between two probes


@dataclass(slots=True)
class Cost:
    """Milliseconds a token: decayed sums that start from a prior."""

    prior_ms: float
    ms: float = 0.0
    tokens: float = 0.0

    @property
    def per_token(self) -> float:
        return (self.prior_ms * PRIOR_TOKENS + self.ms) / (PRIOR_TOKENS + self.tokens)

    def add(self, ms: float, tokens: int, keep: float = KEEP) -> None:
        # One round that the system held up says nothing of what rounds cost.
        self.ms = keep * self.ms + min(ms, OUTLIER * self.per_token * tokens)
        self.tokens = keep * self.tokens + tokens


class Ledger:
    """Plain against drafted for one context class and number of lanes, in ms of wall time a token."""

    def __init__(self, plain_ms: float, drafted_ms: float) -> None:
        self.plain = Cost(plain_ms)
        self.drafted = Cost(drafted_ms)
        self._wait = FIRST_WAIT
        self._since = 0

    @property
    def shortfall(self) -> float:
        """How many times dearer a drafted token has been than a plain one."""
        return self.drafted.per_token / self.plain.per_token

    def allows(self, gain: float) -> bool:
        """Whether a round expected to be `gain` times as fast as plain may draft.

        While drafting loses it must promise more than it fell short, or wait for the next probe.
        """
        shortfall = self.shortfall
        return shortfall <= MARGIN or gain > shortfall * MARGIN or self._since >= self._wait

    def settle(self, drafted: bool, ms: float, tokens: int) -> None:
        """One round's wall time and committed tokens."""
        if not drafted:
            self.plain.add(ms, tokens)
            self.drafted.ms *= FADE
            self.drafted.tokens *= FADE
            self._since += 1
            return
        probe = self._since >= self._wait and self.shortfall > MARGIN
        self.drafted.add(ms, tokens, KEEP_PROBED if probe else KEEP)
        if self.shortfall <= MARGIN:
            self._wait = FIRST_WAIT
        elif probe:
            self._wait = min(2 * self._wait, LAST_WAIT)
        self._since = 0
