"""How far a drafter's own probabilities hold on one lane's text.

Every committed token scores every drafted node whose fate it settles, sent to a verify or not. Knows nothing of
prices or of what drafters do inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.tree import DraftTree

KEEP = 0.97  # of the old evidence, each round that brings new one
PRIOR_NODES = 2.0  # weight of what other texts taught, in expected accepted nodes
BOUNDS = (0.05, 2.0)


def fates(tree: DraftTree, verified: DraftTree | None, committed: Sequence[int]) -> dict[str, list[float]]:
    """Per source, accepted and expected nodes of `tree` after `verified` (over the same anchor) committed these tokens.

    A node is counted only if its parent was among the verified rows (the anchor alone, if None): then its fate is
    known whatever the outcome. Counting the rest would charge a deep tree with tokens that a short round could not
    have brought.
    """
    known: dict[tuple[int, int], int] = {}
    if verified is not None:
        known = {(verified.parents[i], verified.tokens[i]): i for i in range(1, len(verified))}
    counts: dict[str, list[float]] = {}
    row: list[int | None] = [0]  # the node's place among the verified rows
    depth = [0]  # of nodes on the committed path, else -1
    for node in range(1, len(tree)):
        parent, token = tree.parents[node], tree.tokens[node]
        at, above = row[parent], depth[parent]
        settled = at is not None and above < len(committed)
        row.append(known.get((at, token)) if settled and at is not None else None)
        accepted = settled and above >= 0 and committed[above] == token
        depth.append(above + 1 if accepted else -1)
        if settled:
            count = counts.setdefault(tree.sources[node], [0.0, 0.0])
            count[0] += accepted
            count[1] += tree.scores[node]
    return counts


class Evidence:
    """Accepted over expected nodes per source, for one lane; starts from `prior` factors and forgets slowly."""

    def __init__(self, prior: Mapping[str, float]) -> None:
        self._prior = prior
        self._counts: dict[str, list[float]] = {}

    def factor(self, source: str) -> float:
        """What a score of this source is to be multiplied with."""
        accepted, expected = self._counts.get(source, (0.0, 0.0))
        prior = self._prior.get(source, 1.0)
        factor = (accepted + PRIOR_NODES * prior) / (expected + PRIOR_NODES)
        return min(max(factor, BOUNDS[0]), BOUNDS[1])

    def learn(self, counts: Mapping[str, Sequence[float]]) -> None:
        """Takes in what `fates` counted."""
        for source, (accepted, expected) in counts.items():
            old = self._counts.setdefault(source, [0.0, 0.0])
            old[0] = KEEP * old[0] + accepted
            old[1] = KEEP * old[1] + expected

    def factors(self) -> dict[str, float]:
        """All factors this lane has evidence for."""
        return {source: self.factor(source) for source in self._counts}
