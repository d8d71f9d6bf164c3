"""Whether looking for copies earns its time on one text, which promises and prices do not say: what the search, the
trees and the choice take is spent before anything is known.

Knows nothing of how drafts are found or chosen. All amounts are in plain steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

ALLOWANCE = 0.03
"""Share of a plain step that each resting round pays off, at first."""
MOST = 12.0  # that is kept of gains: a text that stops copying is soon found out
LONGEST = 24  # rest, in rounds
PATIENCE = 2  # how many times slower than ALLOWANCE debts are paid off at last
FIRST_CREDIT, LEAST_CREDIT, MOST_CREDIT = 4.0, 0.5, 8.0  # of a new text


@dataclass(slots=True)
class Account:
    """One lane's balance in one context class: what copies gained, less all that looking for them took.

    Below zero the lane rests: until a small share of its steps has paid for another look, and up to four times as long
    until looking gains something.
    """

    balance: float
    earned: float = 0.0
    patience: int = 1
    rest: int = 0

    def rests(self) -> int:
        """How many rounds are to go without from now on; asked again behind them."""
        rest, self.rest = self.rest, 0
        return rest

    def settle(self, gain: float, looking: float) -> None:
        """The round looked, which took `looking` plain steps, and brought so many more or less than a plain one."""
        self.earned += gain
        self.balance = min(self.balance + gain, MOST)
        if gain > 0.0:
            self.patience = 1
        if self.balance < 0.0:
            self.rest = min(ceil(looking / ALLOWANCE) * self.patience, LONGEST)
            self.balance = 0.0
            self.patience = min(2 * self.patience, PATIENCE)


class Credits:
    """What a new text may spend on looking, by context class: more where texts before earned it, else less."""

    def __init__(self) -> None:
        self._credits: dict[int, float] = {}

    def open(self, context_class: int) -> Account:
        """The account of a text that comes into a class."""
        return Account(self._credits.get(context_class, FIRST_CREDIT))

    def close(self, accounts: Mapping[int, Account]) -> None:
        """A text is over."""
        for context_class, account in accounts.items():
            if account.earned:
                credit = self._credits.get(context_class, FIRST_CREDIT) * (2.0 if account.earned > 0.0 else 0.5)
                self._credits[context_class] = min(max(credit, LEAST_CREDIT), MOST_CREDIT)
