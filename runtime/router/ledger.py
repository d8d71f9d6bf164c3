"""What drafted rounds and plain steps really cost a token, and whether drafting has to prove itself first.

Prices and probabilities can both be wrong in a way no table shows; wall time per committed token cannot. Knows
nothing of trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tandem.runtime.router.cut import HostTime

KEEP = 0.9  # of the old sums, each round
KEEP_PROBED = 0.5  # by a probe, which has to outweigh rounds long past
FADE = 0.999  # of the drafted sums, each round of another arm: one slow spell does not keep a class plain for good
PRIOR_TOKENS = 4.0
OUTLIER = 4.0  # a round counts as at most this many times what its tokens cost until now
MARGIN = 1.03  # drafting loses when dearer than plain by more than noise
FIRST_WAIT, LAST_WAIT = 16, 256  # rounds of other arms between two probes
FIRST_PLAIN, LAST_PLAIN = 4, 512  # the same for plain rounds, which everything else is held against
GLANCE = 7  # rounds for which a refusal stands before it is looked at again
FOLLOW = 0.1  # weight of a new round in the host's part


class Arm(StrEnum):
    """How a round comes by its tokens."""

    PLAIN = "plain"
    COPIED = "copied"
    """Drafted by drafters that cost nothing."""

    MODELLED = "modelled"
    """A model was asked, whatever was verified then."""


@dataclass(slots=True)
class Cost:
    """Milliseconds a token: decayed sums beside a prior, which weighs as much as so many tokens for good."""

    prior_ms: float
    ms: float = 0.0
    tokens: float = 0.0
    weight: float = PRIOR_TOKENS

    @property
    def per_token(self) -> float:
        return (self.prior_ms * self.weight + self.ms) / (self.weight + self.tokens)

    def sound(self, ms: float, tokens: int) -> float:
        """A round's ms; of one that the system held up what it may have taken itself."""
        return min(ms, OUTLIER * self.per_token * tokens)

    def add(self, ms: float, tokens: int, keep: float = KEEP) -> None:
        self.ms = keep * self.ms + self.sound(ms, tokens)
        self.tokens = keep * self.tokens + tokens


@dataclass(slots=True)
class Mean:
    """Mean ms of some part of a round."""

    ms: float = 0.0
    num_samples: int = 0

    def sound(self, ms: float) -> float:
        """Takes in one more; that of a round which the system held up counts as at most OUTLIER times the mean."""
        if self.num_samples:
            ms = min(ms, OUTLIER * self.ms)
        self.num_samples += 1
        self.ms += (ms - self.ms) * max(FOLLOW, 1.0 / self.num_samples)
        return ms


@dataclass(slots=True)
class Drafted:
    """An arm that drafts: its cost, in which of the ledger's rounds it was taken last, how many others have to pass
    before it is probed, and what its rounds were priced at and took, in plain tokens.

    `refused` counts rounds to come in which nothing can have changed yet.
    """

    cost: Cost
    last: int = 0
    faded: int = 0
    wait: int = FIRST_WAIT
    priced: float = PRIOR_TOKENS
    took: float = PRIOR_TOKENS
    refused: int = 0

    def add(self, ms: float, tokens: int, priced: float, took: float, keep: float) -> None:
        """One round."""
        self.cost.add(ms, tokens, keep)
        self.priced = keep * self.priced + priced
        self.took = keep * self.took + took

    def fade(self, rounds: int) -> None:
        """Back towards the priors, as `rounds` of other arms do."""
        if rounds:
            keep = FADE**rounds
            self.cost.ms *= keep
            self.cost.tokens *= keep
            self.priced += (1.0 - keep) * (PRIOR_TOKENS - self.priced)
            self.took += (1.0 - keep) * (PRIOR_TOKENS - self.took)


class Ledger:
    """Plain against drafted for one context class and number of lanes, in ms of wall time a token.

    `drafted_ms` is the prior of rounds that draft; of those that ask a model it is `modelled_ms`, if given. `asked` is
    the time that finding copies and choosing takes, `host` that of the host's part behind it.
    """

    def __init__(self, plain_ms: float, drafted_ms: float, modelled_ms: float | None = None) -> None:
        # What plain rounds take is measured all the time, so the prior is only where that starts.
        self.plain = Cost(plain_ms, plain_ms * PRIOR_TOKENS, PRIOR_TOKENS, weight=0.0)
        self.host, self.asked = HostTime(), Mean()
        self._host = {False: Mean(), True: Mean()}
        self._rounds = self._plain_last = 0
        self._plain_wait = FIRST_PLAIN
        priors = {Arm.COPIED: drafted_ms, Arm.MODELLED: drafted_ms if modelled_ms is None else modelled_ms}
        self._drafted = {arm: Drafted(Cost(ms)) for arm, ms in priors.items()}

    def host_took(self, drafted: bool, ms: float) -> None:
        """The host's part of a round, behind the choice and outside passes."""
        self._host[drafted].sound(ms)
        plain, verified = self._host[False].ms, self._host[True]
        self.host = HostTime(plain, verified.ms if verified.num_samples else plain)

    def shortfall(self, arm: Arm) -> float:
        """How many times dearer a token of `arm` has been than a plain one."""
        return self._faded(arm).cost.per_token / self.plain.per_token

    def saving(self) -> float:
        """ms a token that rounds with a model have been cheaper than plain ones; negative if they were dearer."""
        return self.plain.per_token - self._faded(Arm.MODELLED).cost.per_token

    def age(self, rounds: int) -> None:
        """`rounds` will be plain whatever the model promises: what it was found to cost goes back to the prior."""
        self._faded(Arm.MODELLED).fade(rounds)

    def allows(self, arm: Arm, gain: float | None = None) -> bool:
        """Whether a round expected to be `gain` times as fast as plain may draft; None if nobody knows yet.

        Promises are weighed by what such rounds take against their prices. While the arm loses it must promise more
        than it fell short, or wait for the next probe. Now and then a round is plain to tell what that takes: where all
        are drafted nobody else would.
        """
        if self._plain_is_due():
            return False
        drafted = self._drafted[arm]
        if gain is None and drafted.refused:
            drafted.refused -= 1
            return False
        shortfall, since = self.shortfall(arm), self._rounds - drafted.last
        loses = shortfall > MARGIN
        if loses and since >= drafted.wait:
            return True
        if gain is None:
            drafted.refused = min(drafted.wait - since - 1, GLANCE) if loses else 0
            return not loses
        return gain * min(1.0, drafted.priced / drafted.took) > (shortfall * MARGIN if loses else 1.0)

    def settle(self, arm: Arm, ms: float, tokens: int, priced: float | None = None) -> None:
        """One round's wall time and committed tokens; by its price it takes as long as `priced` plain tokens."""
        if arm is Arm.PLAIN:
            if probe := self._plain_is_due():
                self._plain_wait = min(2 * self._plain_wait, LAST_PLAIN)
            self._rounds += 1
            self._plain_last = self._rounds
            self.plain.add(ms, tokens, KEEP_PROBED if probe else KEEP)
            return
        taken, since = self._faded(arm), self._rounds - self._drafted[arm].last
        self._rounds += 1
        taken.last = taken.faded = self._rounds
        probe = since >= taken.wait and self.shortfall(arm) > MARGIN
        took = taken.cost.sound(ms, tokens) / self.plain.per_token
        taken.add(ms, tokens, took if priced is None else priced, took, KEEP_PROBED if probe else KEEP)
        if self.shortfall(arm) <= MARGIN:
            taken.wait = FIRST_WAIT
        elif probe:
            taken.wait = min(2 * taken.wait, LAST_WAIT)

    def _plain_is_due(self) -> bool:
        return self._rounds - self._plain_last >= self._plain_wait

    def _faded(self, arm: Arm) -> Drafted:
        """An arm as the rounds of the others since have left it."""
        drafted = self._drafted[arm]
        drafted.fade(self._rounds - drafted.faded)
        drafted.faded = self._rounds
        return drafted
