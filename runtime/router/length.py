"""The length router: one of two widths for a whole request, decided once from its first rounds.

The baseline of the time before prices were asked; knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tandem.runtime.meter import Plain
from tandem.runtime.router.baselines import FixedRouter
from tandem.runtime.router.blend import Blend

NARROW, WIDE = 8, 16  # rows
WIDE_ROUNDS, NARROW_ROUNDS = 4, 4  # before the decision
CEILING = 0.25  # share of wide rounds that fill the narrow width, from which on narrow is not even tried
MARGIN = 1.02  # by which the narrow width has to be faster
FIRST, FOLLOW = 8, 0.25  # samples that are averaged, and the weight of each after them


@dataclass(slots=True)
class Width:
    """Tokens and milliseconds of a lane's rounds at one width."""

    rounds: int = 0
    tokens: float = 0.0
    ms: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a millisecond."""
        return self.tokens / self.ms if self.ms else 0.0

    def learn(self, tokens: int, ms: float) -> None:
        self.rounds += 1
        weight = 1.0 / self.rounds if self.rounds <= FIRST else FOLLOW
        self.tokens += weight * (tokens - self.tokens)
        self.ms += weight * (ms - self.ms)


@dataclass(slots=True)
class Latch:
    """One lane's trial; `width` is what it drafts now, for good once `decided`."""

    width: int = WIDE
    decided: bool = False
    filled: int = 0  # wide rounds that were right as far as the narrow width goes
    widths: dict[int, Width] = field(default_factory=lambda: {NARROW: Width(), WIDE: Width()})

    def learn(self, tokens: int, ms: float) -> None:
        """One drafted round at `width`."""
        if self.decided:
            return
        self.widths[self.width].learn(tokens, ms)
        if self.width == WIDE:
            self.filled += tokens >= NARROW
            if self.widths[WIDE].rounds >= WIDE_ROUNDS:
                self.decided = self.filled / WIDE_ROUNDS >= CEILING
                self.width = WIDE if self.decided else NARROW
        elif self.widths[NARROW].rounds >= NARROW_ROUNDS:
            self.decided = True
            narrow, wide = self.widths[NARROW].rate, self.widths[WIDE].rate
            self.width = NARROW if narrow > MARGIN * wide else WIDE


class LengthRouter(FixedRouter):
    """Each lane drafts wide, tries narrow if wide is seldom filled, and then stays with the faster.

    A round that is right in its first NARROW - 1 guesses is one that a narrow block would have filled too: wide rounds
    tell of both. Rounds in which a lane has nothing to draft teach nothing.
    """

    def __init__(self, *, declined: Callable[[Plain], None] = lambda reason: None) -> None:
        super().__init__(WIDE, declined=declined)
        self._latches: dict[int, Latch] = {}

    def open(self, lane: int) -> None:
        self._latches[lane] = Latch()

    def close(self, lane: int) -> None:
        self._latches.pop(lane, None)

    def _learn(self, lane: int, drafted: bool, num_tokens: int, ms: float | None) -> None:
        if drafted and ms:
            self._latches[lane].learn(num_tokens, ms)

    def _kept(self, lane: int, blend: Blend, context: int, spent: float) -> list[int]:
        return super()._kept(lane, blend, context, spent)[: self._latches[lane].width - 1]
