"""How far a drafter's walk comes true: slots in a row, learned of a text and, for the next ones, of all texts.

Knows nothing of drafts, prices or lanes.
"""

from __future__ import annotations

FIRST = 0.8
"""Chance of a slot where nothing is known: more than most drafters hold, so that each is tried."""
PRIOR_SLOTS = 8.0
"""Weight of what is known at first, in slots."""


class Reach:
    """Slots that came true of those whose fate is known, each given that all before it did.

    One of a text starts from that of all texts, its `prior`, and tells it what it learns. Old slots fade with each
    drafted round by `keep`, and much slower with others: who was found not to be worth a draft is asked again.
    """

    def __init__(self, prior: Reach | None = None, *, keep: float = 0.9) -> None:
        self._prior, self._keep = prior, keep
        self._fade = 1.0 - (1.0 - keep) / 10.0
        self._hits = self._trials = 0.0

    @property
    def chance(self) -> float:
        """That a slot comes true behind others that did."""
        first = self._prior.chance if self._prior else FIRST
        return (first * PRIOR_SLOTS + self._hits) / (PRIOR_SLOTS + self._trials)

    def expected(self, slots: int) -> float:
        """Slots in a row that come true, of so many."""
        chance = self.chance
        return float(slots) if chance >= 1.0 else chance * (1.0 - chance**slots) / (1.0 - chance)

    def learn(self, hits: int, trials: int) -> None:
        """A round's slots whose fate is known, and how many of them came true."""
        self._hits, self._trials = self._keep * self._hits + hits, self._keep * self._trials + trials
        if self._prior:
            self._prior.learn(hits, trials)

    def age(self) -> None:
        """A round went without."""
        self._hits, self._trials = self._fade * self._hits, self._fade * self._trials
        if self._prior:
            self._prior.age()
