"""How far drafters' own probabilities hold: by source and score over texts that have ended, by source on a lane's own.

Every committed token scores every drafted node whose fate it settles, sent to a verify or not. Knows nothing of
prices or of what drafters do inside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from operator import add, mul

from tandem.runtime.router.blend import LAST, TENTHS, Blend, Factors

KEEP = 0.99  # of a lane's old evidence, each round that brings new one
PRIOR_NODES = 16.0  # weight of what other texts taught, in expected accepted nodes
BOUNDS = (0.05, 2.0)
PRIOR_TENTH = 15.0  # weight of a drafter's own word in a tenth of its scores, in expected accepted nodes
MAX_TENTH = 400.0  # expected accepted nodes of a tenth, from which on old ones fade by halving

OWN_WORD, NONE = [1.0] * TENTHS, [0.0] * TENTHS
Counts = dict[str, tuple[list[float], list[float]]]
"""By source, accepted and expected nodes, each by tenths of their scores."""


def fates(blend: Blend, verified: Collection[int], committed: Sequence[int]) -> Counts:
    """What became of the nodes of `blend` after its nodes `verified` were and committed these tokens.

    A node is counted only if its parent was among the verified rows (the anchor always is): then its fate is known
    whatever the outcome. Counting the rest would charge a deep tree with tokens that a short round could not have
    brought. A node that two families propose is counted for both.
    """
    parents, path = blend.parents, blend.path(committed)
    judged = [parent <= 0 or parent in verified for parent in parents]
    judged[0] = False
    if len(path) > len(committed):
        below = set(path[-1:])  # the text ends here, and what would have come is open
        for node in range(path[-1] + 1, len(parents)):
            if parents[node] in below:
                below.add(node)
                judged[node] = False
    counts: Counts = {}
    for family in blend.heard:
        scores, sources, last = blend.scores[family], blend.sources[family], ""
        for score, source in zip(compress(scores, judged), compress(sources, judged), strict=True):
            if score:
                if source is not last:
                    last = source
                    _, expected = counts.setdefault(source, ([0.0] * TENTHS, [0.0] * TENTHS))
                expected[int(score * LAST)] += score
        for node in path:
            if judged[node] and (score := scores[node]):
                counts[sources[node]][0][int(score * LAST)] += 1.0
    return counts


class Calibration:
    """Accepted over expected nodes by source and tenth, of all texts that have ended; at first a drafter's own word."""

    def __init__(self) -> None:
        self._counts: Counts = {}

    def learn(self, counts: Counts) -> None:
        """Takes in what `fates` counted on a text."""
        for source, (accepted, expected) in counts.items():
            old = self._counts.setdefault(source, ([0.0] * TENTHS, [0.0] * TENTHS))
            for tenth in range(TENTHS):
                old[0][tenth] += accepted[tenth]
                old[1][tenth] += expected[tenth]
                if old[1][tenth] > MAX_TENTH:
                    old[0][tenth] /= 2.0
                    old[1][tenth] /= 2.0

    def factors(self) -> dict[str, list[float]]:
        """What is known so far."""
        return {
            source: [(a + PRIOR_TENTH) / (e + PRIOR_TENTH) for a, e in zip(accepted, expected, strict=True)]
            for source, (accepted, expected) in self._counts.items()
        }


class Evidence:
    """What one lane's text has taught. It starts from `known` factors, as `Calibration` has them, and forgets slowly.

    A text tells too little of each tenth, so it moves all of a source together, and what moves them most is how far
    its nodes fared better or worse than those of other texts.
    """

    def __init__(self, known: Factors) -> None:
        self._known = known
        self._sums: dict[str, list[float]] = {}
        self.counts: Counts = {}
        self.factors: dict[str, Sequence[float]] = dict(known)
        """What is known and what this text has taught."""

    def learn(self, counts: Counts) -> None:
        """Takes in what `fates` counted."""
        for source, (accepted, expected) in counts.items():
            known = self._known.get(source, OWN_WORD)
            whole = self.counts.get(source, (NONE, NONE))
            self.counts[source] = list(map(add, whole[0], accepted)), list(map(add, whole[1], expected))
            sums = self._sums.setdefault(source, [0.0, 0.0])
            sums[0] = KEEP * sums[0] + sum(accepted)
            sums[1] = KEEP * sums[1] + sum(map(mul, expected, known))
            factor = (sums[0] + PRIOR_NODES) / (sums[1] + PRIOR_NODES)
            factor = min(max(factor, BOUNDS[0]), BOUNDS[1])
            self.factors[source] = [factor * own for own in known]
