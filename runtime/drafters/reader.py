"""One lane's share of a drafter that is a model: its text, and the rows whose taps the model has not read yet.

Knows nothing of what a model guesses, of passes, of the ring or of other lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from tandem.runtime.rows import DraftSpan
from tandem.tree import DraftTree

Claim = Callable[[Iterable[int]], list[int]]
"""Tells where the taps of rows of the last pass lie."""


class TapReader(ABC):
    """Keeps what its model has to read: `pending` are the places of taps, of positions `first` and on.

    One that is `lost` keeps nothing.
    """

    BEHIND: ClassVar[int] = 0
    """How far behind its position the token stands that a row is given."""

    def __init__(self, lane: int, claim: Claim) -> None:
        self.lane, self._claim = lane, claim
        self.ids: list[int] = []
        self.first = 0
        self.pending: list[int] = []
        self.lost = False

    @property
    def seen(self) -> int:
        """Positions below are read, or can be."""
        return self.first + len(self.pending)

    def begin(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)

    @abstractmethod
    def propose(self, max_nodes: int) -> list[DraftTree]:
        """Of what was guessed in the round at hand."""

    def backlog(self, count: int, tap_out: int = -1) -> DraftSpan:
        """The first `count` of `pending` for the model to read, which leaves its own of the last one in `tap_out`."""
        after = self.first + self.BEHIND
        return DraftSpan(self.lane, self.first, self.ids[after : after + count], self.pending[:count], tap_out)

    def skip(self, length: int) -> None:
        """Positions below `length`, of which none has come in, are read: another did whose pages are the same."""
        self.first = length

    def read(self, count: int) -> list[int]:
        """The model has read the first `count` of `pending`, whose places are given back."""
        done, self.pending = self.pending[:count], self.pending[count:]
        self.first += count
        return done

    def lose(self) -> list[int]:
        """Nothing more is asked of it; gives back all places."""
        self.lost = True
        return self.read(len(self.pending))

    def sync(self, rows: Sequence[int]) -> None:
        if not self.lost:
            self.pending += self._claim(rows)

    def observe(self, tokens: Sequence[int]) -> None:
        self.ids += tokens

    def end(self) -> None:
        """Nothing: what the lane held is its group's to take back."""
        return


R = TypeVar("R", bound=TapReader)


@dataclass(frozen=True, slots=True)
class Seat(Generic[R]):
    """A drafter that may guess in the round at hand, and how many tokens ahead, at least 1."""

    drafter: R
    depth: int
