"""A round that was chosen, until it is settled, and what copies gained in it.

Knows nothing of how drafts are found, cut or believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.runtime.router.blend import Blend
from tandem.runtime.router.ledger import OUTLIER, Arm

MISS = 0.1
"""Plain steps beyond looking that a verify may cost looking. One that lost more was promised too much, which evidence
and ledger see to: a text that copies now and then must stand some of them."""


@dataclass(slots=True)
class Played:
    """`kept` are the nodes of each lane's `blend` that are verified. By its price a round without a model takes as long
    as `priced` plain tokens; None where it is plain or a model was asked."""

    lanes: Sequence[int]
    blends: Sequence[Blend]
    kept: Sequence[Sequence[int]]
    context: int
    arm: Arm
    priced: float | None
    drafted: bool

    def copied_gains(
        self, committed: Sequence[Sequence[int]], asking: Sequence[int], took: float, looking: float
    ) -> dict[int, float]:
        """What copies gained in each of the places `asking`, less what looking for them took; all in plain steps.

        The round took `took`, and looking `looking` of it for each of them. Tokens beyond a lane's first are steps
        saved. What a round that verified took beyond a plain one is shared by rows. Where a model was asked as well,
        the copies' merit is what only they proposed, and their cost that of looking.
        """
        if self.priced is not None:
            sound = min(took, OUTLIER * self.priced + looking * len(asking))  # of one that the system did not hold up
            rows = [1 + len(kept) for kept in self.kept]
            each = (sound - len(self.lanes)) / sum([rows[i] for i in asking])
            return {i: max(len(committed[i]) - 1 - each * rows[i], -looking - MISS) for i in asking}
        return {i: (self._copied(i, committed[i]) if self.drafted else 0) - looking for i in asking}

    def _copied(self, place: int, tokens: Sequence[int]) -> int:
        """How many accepted tokens of a lane only copies proposed."""
        kept, blend = set(self.kept[place]), self.blends[place]
        modelled = blend.scores[1]
        return sum([node in kept and not modelled[node] for node in blend.path(tokens)[1:]])
