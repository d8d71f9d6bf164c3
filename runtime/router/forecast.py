"""What asking the model is expected to bring a lane, from how its guesses fared on the lane's text.

Knows nothing of prices or trees' insides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.runtime.router.blend import Blend

FOLLOW = 0.15  # weight of a new round
FIRST_ACCEPTED = 2.0  # tokens that a model's tree is thought to bring before it was ever asked


@dataclass(slots=True)
class Forecast:
    """`accepted` is the mean of tokens that the model's tree would have brought, sent to a verify or not."""

    accepted: float = FIRST_ACCEPTED

    def learn(self, blend: Blend, committed: Sequence[int]) -> None:
        """What a round committed, given all that was proposed for it; nothing where the model was not asked."""
        if 1 in blend.heard:
            self.accepted += FOLLOW * (blend.foreseen(committed, 1) - self.accepted)
