"""How far a drafter's own probabilities hold on one lane's text.

Every committed token scores every drafted node whose fate it settles, sent to a verify or not. Knows nothing of
prices or of what drafters do inside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tandem.runtime.router.blend import Blend

KEEP = 0.97  # of the old evidence, each round that brings new one
PRIOR_NODES = 2.0  # weight of what other texts taught, in expected accepted nodes
BOUNDS = (0.05, 2.0)


def fates(blend: Blend, verified: Collection[int], committed: Sequence[int]) -> dict[str, list[float]]:
    """Per source, accepted and expected nodes of `blend` after its nodes `verified` were and committed these tokens.

    A node is counted only if its parent was among the verified rows (the anchor always is): then its fate is known
    whatever the outcome. Counting the rest would charge a deep tree with tokens that a short round could not have
    brought. A node that two families propose is counted for both.
    """
    counts: dict[str, list[float]] = {}
    parents, tokens, length = blend.parents, blend.tokens, len(committed)
    depth = [0]  # of nodes on the committed path or past its end, else -1
    families = tuple(zip(blend.scores, blend.sources, strict=True))
    for node in range(1, len(parents)):
        parent = parents[node]
        above = depth[parent]
        if above >= length:
            depth.append(above)
            continue
        accepted = above >= 0 and committed[above] == tokens[node]
        depth.append(above + 1 if accepted else -1)
        if not parent or parent in verified:
            for scores, sources in families:
                if scores[node]:
                    count = counts.get(sources[node])
                    if count is None:
                        count = counts[sources[node]] = [0.0, 0.0]
                    count[0] += accepted
                    count[1] += scores[node]
    return counts


class Evidence:
    """Accepted over expected nodes per source, for one lane; starts from `prior` factors and forgets slowly."""

    def __init__(self, prior: Mapping[str, float]) -> None:
        self._prior = prior
        self._counts: dict[str, list[float]] = {}
        self.factors = dict(prior)
        """What a score of a source is to be multiplied with; 1 for a source that is not in it."""

    def learn(self, counts: Mapping[str, Sequence[float]]) -> None:
        """Takes in what `fates` counted."""
        for source, (accepted, expected) in counts.items():
            count = self._counts.setdefault(source, [0.0, 0.0])
            count[0] = KEEP * count[0] + accepted
            count[1] = KEEP * count[1] + expected
            prior = self._prior.get(source, 1.0)
            factor = (count[0] + PRIOR_NODES * prior) / (count[1] + PRIOR_NODES)
            self.factors[source] = min(max(factor, BOUNDS[0]), BOUNDS[1])

    def learned(self) -> dict[str, float]:
        """The factors that this lane has evidence for."""
        return {source: self.factors[source] for source in self._counts}
