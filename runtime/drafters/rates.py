"""How often a copied line goes on, given how many tokens agree already.

Counted online over every proposal, verified or not; knows nothing of trees or prices.
"""

from __future__ import annotations

from bisect import bisect_right

AGREED = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)  # lower ends of the bins
# Share of places whose next token came next, per bin, measured on Python sources and English documentation
# in SmolLM2's vocabulary, before a session has counts of its own.
PRIOR = (0.50, 0.58, 0.64, 0.69, 0.74, 0.77, 0.81, 0.88, 0.95, 0.97, 0.98)
PRIOR_WEIGHT = 8.0
MAX_TRIALS = 4000.0
BINS = [bisect_right(AGREED, agreed) - 1 for agreed in range(AGREED[-1] + 1)]


class CopyRates:
    """A Beta count per bin of agreement, shared by the lanes of an engine: what one text teaches helps the next."""

    def __init__(self) -> None:
        self._went_on = [mean * PRIOR_WEIGHT for mean in PRIOR]
        self._trials = [PRIOR_WEIGHT] * len(PRIOR)
        self._rates = list(PRIOR)

    def rate(self, agreed: int) -> float:
        """Chance that the next token is one of those that followed, when `agreed` (>= 2) tokens agree."""
        return self._rates[BINS[min(agreed, AGREED[-1])]]

    def ladder(self, agreed: int, steps: int) -> list[float]:
        """`rate` of `agreed` tokens, of one more, and so on."""
        rates, last = self._rates, len(AGREED) - 1
        bins = BINS[agreed : agreed + steps]
        return [rates[i] for i in bins] + [rates[last]] * (steps - len(bins))

    def count(self, agreed: int, went_on: bool) -> None:
        """One more trial; old ones fade by halving once there are many."""
        bin_ = BINS[min(agreed, AGREED[-1])]
        self._went_on[bin_] += went_on
        self._trials[bin_] += 1.0
        if self._trials[bin_] > MAX_TRIALS:
            self._went_on[bin_] /= 2.0
            self._trials[bin_] /= 2.0
        self._rates[bin_] = self._went_on[bin_] / self._trials[bin_]
