"""What drafted rounds and plain steps really cost a token, and whether drafting has to prove itself first.

Prices and probabilities can both be wrong in a way no table shows; wall time per committed token cannot. Knows
nothing of trees.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

KEEP = 0.9  # of the old sums, each round
KEEP_PROBED = 0.5  # by a probe, which has to outweigh rounds long past
KNOWN_TOKENS = 8.0  # after fewer of an arm's nothing is known of it
FADE = 0.999  # of the drafted sums, each round of another arm: one slow spell does not keep a class plain for good
PRIOR_TOKENS = 4.0
OUTLIER = 4.0  # a round counts as at most this many times what its tokens cost until now
MARGIN = 1.03  # drafting loses when dearer than plain by more than noise
FIRST_WAIT, LAST_WAIT = 16, 256  # rounds of other arms between two probes


class Arm(StrEnum):
    """How a round comes by its tokens."""

    PLAIN = "plain"
    COPIED = "copied"
    """Drafted by drafters that cost nothing."""

    MODELLED = "modelled"
    """A model was asked, whatever was verified then."""


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

    def fade(self) -> None:
        self.ms *= FADE
        self.tokens *= FADE


@dataclass(slots=True)
class Drafted:
    """An arm that drafts: its cost, rounds since it was taken, and how many have to pass before it is probed."""

    cost: Cost
    since: int = 0
    wait: int = field(default=FIRST_WAIT)


class Ledger:
    """Plain against drafted for one context class and number of lanes, in ms of wall time a token."""

    def __init__(self, plain_ms: float, drafted_ms: float) -> None:
        self.plain = Cost(plain_ms)
        self._drafted = {arm: Drafted(Cost(drafted_ms)) for arm in (Arm.COPIED, Arm.MODELLED)}

    def shortfall(self, arm: Arm) -> float:
        """How many times dearer a token of `arm` has been than a plain one."""
        return self._drafted[arm].cost.per_token / self.plain.per_token

    def saving(self) -> float | None:
        """ms a token that rounds with a model have been cheaper than plain ones; negative if they were dearer.

        None where there were none, or so long ago that they are forgotten.
        """
        modelled = self._drafted[Arm.MODELLED].cost
        return None if modelled.tokens < KNOWN_TOKENS else self.plain.per_token - modelled.per_token

    def allows(self, arm: Arm, gain: float = 1.0) -> bool:
        """Whether a round expected to be `gain` times as fast as plain may draft.

        While the arm loses it must promise more than it fell short, or wait for the next probe.
        """
        shortfall, drafted = self.shortfall(arm), self._drafted[arm]
        return shortfall <= MARGIN or gain > shortfall * MARGIN or drafted.since >= drafted.wait

    def settle(self, arm: Arm, ms: float, tokens: int) -> None:
        """One round's wall time and committed tokens."""
        for name, drafted in self._drafted.items():
            if name is not arm:
                drafted.cost.fade()
                drafted.since += 1
        if arm is Arm.PLAIN:
            self.plain.add(ms, tokens)
            return
        taken = self._drafted[arm]
        probe = taken.since >= taken.wait and self.shortfall(arm) > MARGIN
        taken.cost.add(ms, tokens, KEEP_PROBED if probe else KEEP)
        if self.shortfall(arm) <= MARGIN:
            taken.wait = FIRST_WAIT
        elif probe:
            taken.wait = min(2 * taken.wait, LAST_WAIT)
        taken.since = 0
