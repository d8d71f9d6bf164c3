"""How often guesses of a head come true, given the probability that it gave them itself.

Counted online over every guess whose fate is known, verified or not; knows nothing of trees or prices.
"""

from __future__ import annotations

TENTHS = 10
PRIOR_HITS = 4.0
"""Weight of the head's own word, in expected hits."""
MAX_EXPECTED = 400.0


class ProbDeciles:
    """Hits and expected hits per tenth of probability, shared by the lanes of an engine.

    A rate starts at the probability itself. What comes true more or less often than it says moves all rates of its
    tenth in proportion, so that likelier guesses of one tenth stay the likelier ones.
    """

    def __init__(self) -> None:
        self._hits = [0.0] * TENTHS
        self._expected = [0.0] * TENTHS

    def rate(self, prob: float) -> float:
        """The chance that a guess of probability `prob` (0 to 1) comes true."""
        tenth = _tenth(prob)
        return min(1.0, prob * (self._hits[tenth] + PRIOR_HITS) / (self._expected[tenth] + PRIOR_HITS))

    def count(self, prob: float, hit: bool) -> None:
        """One more guess whose fate is known; old ones fade by halving once there are many."""
        tenth = _tenth(prob)
        self._hits[tenth] += hit
        self._expected[tenth] += prob
        if self._expected[tenth] > MAX_EXPECTED:
            self._hits[tenth] /= 2.0
            self._expected[tenth] /= 2.0


def _tenth(prob: float) -> int:
    return min(int(prob * TENTHS), TENTHS - 1)
