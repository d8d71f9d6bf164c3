"""What asking a model for a draft costs, learned per context class and number of lanes.

Knows nothing of how a model drafts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FIRST = 3  # samples whose mean is taken, before the newest weigh more
FOLLOW = 0.3  # weight of a new sample then
OUTLIER = 3.0  # samples so many times off are a compile, a page fault, another process: not what a draft costs
STRAYS = 3  # outliers in a row are the truth

Prior = Callable[[str, int, int], float]
"""Milliseconds of a draft by a source, at a context class, for so many lanes, before any was measured."""


@dataclass(slots=True)
class DraftCost:
    """ms 0 is not known."""

    ms: float
    num_samples: int = 0
    strays: int = 0

    def observe(self, ms: float) -> None:
        if self.ms and not self.ms / OUTLIER <= ms <= self.ms * OUTLIER:
            self.strays += 1
            if self.strays < STRAYS:
                return
            self.num_samples = 0
        self.strays = 0
        self.num_samples += 1
        self.ms += (ms - self.ms) * (1.0 / self.num_samples if self.num_samples <= FIRST else FOLLOW)


class DraftCosts:
    """Milliseconds a draft by source, context class and number of lanes."""

    def __init__(self, prior: Prior = lambda source, context_class, lanes: 0.0) -> None:
        self._prior = prior
        self._costs: dict[tuple[str, int, int], DraftCost] = {}

    def ms(self, source: str, context_class: int, lanes: int) -> float:
        """What is learned, else the prior."""
        return self._cost(source, context_class, lanes).ms

    def observe(self, source: str, context_class: int, lanes: int, ms: float) -> None:
        """One draft's wall time."""
        if 0.0 < ms < math.inf:
            self._cost(source, context_class, lanes).observe(ms)

    def _cost(self, *key: Any) -> DraftCost:
        if key not in self._costs:
            self._costs[key] = DraftCost(self._prior(*key))
        return self._costs[key]
