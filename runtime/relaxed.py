"""Relaxed accept rules: a greedy walk may follow drafted tokens that are nearly the model's own. For measurements only.

Texts are then no longer the model's, so the rule is off unless it is asked for, and `Service.fingerprint` tells of it.
Knows nothing of passes and lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A drafted token may stand for the model's own if its logit is within `tau` of the largest and its rank is at most
    `rank`: 1 is the largest logit, equal ones rank by id. None asks nothing."""

    tau: float | None = None
    rank: int | None = None

    def __str__(self) -> str:
        parts = ["relaxed"]
        parts += [] if self.tau is None else [f"tau{self.tau:g}"]
        parts += [] if self.rank is None else [f"rank{self.rank}"]
        return "-".join(parts)

    def choice(self, logits: np.ndarray, own: int, drafted: Sequence[int]) -> int:
        """The token that follows the row of `logits` fp32 [V], whose own is `own`: it, if it is among those `drafted`
        here; else the one of them that ranks first, if the rule lets it pass; else `own`. Impossible ones never do."""
        possible = [token for token in drafted if logits[token] > -np.inf]
        if own in drafted or not possible:
            return own
        best = min(possible, key=lambda token: (-logits[token], token))
        logit = logits[best]
        if float(logits[own]) - float(logit) > (math.inf if self.tau is None else self.tau):
            return own
        if self.rank is not None:
            before = int((logits > logit).sum()) + int((logits[:best] == logit).sum())
            if before >= self.rank:
                return own
        return best
