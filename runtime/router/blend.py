"""One lane's candidates as one forest node list: what each drafter thinks of a node, and what both think together.

Drafters of two families guess apart from each other: copying drafters, and models. Knows nothing of prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.runtime.drafters.base import MODELS
from tandem.tree import DraftTree

SUREST = 0.99  # that a guess may be of itself where another contradicts it
LEAST = 1e-9  # score of a proposed node: 0 says that it was not
NO_ANCHOR = -1  # token of the root given to a lane without candidates


class Blend:
    """Parallel lists over nodes, the anchor first and parents before children; not in depth-first order.

    `scores[family][node]` is the larger score that drafters of the family (0 copies, 1 models) gave the node, 0 where
    none proposed it, `sources[family][node]` the source of that score, `q[node]` the chance that the whole path is
    accepted.
    """

    __slots__ = ("known", "parents", "q", "scores", "sources", "tokens")

    def __init__(self, trees: Sequence[DraftTree], factors: Mapping[str, float]) -> None:
        """`factors` are what scores of a source have to be multiplied with; 1 for a source that is not in it."""
        self.tokens = [trees[0].tokens[0] if trees else NO_ANCHOR]
        self.parents = [-1]
        self.scores: tuple[list[float], list[float]] = ([1.0], [1.0])
        self.sources: tuple[list[str], list[str]] = (["root"], ["root"])
        self.known: dict[tuple[int, int], int] = {}
        for tree in trees:
            self._add(tree)
        self.q = self._chances(factors)

    def __len__(self) -> int:
        return len(self.tokens)

    def _add(self, tree: DraftTree) -> None:
        tokens, parents, known = self.tokens, self.parents, self.known
        family = not MODELS.isdisjoint(tree.sources)
        scores, sources, others, names = (
            self.scores[family],
            self.sources[family],
            self.scores[not family],
            self.sources[not family],
        )
        place = [0]
        rows = zip(tree.parents, tree.tokens, tree.scores, tree.sources, strict=True)
        next(rows)
        for parent, token, score, source in rows:
            score = min(1.0, max(LEAST, score))  # in this order NaN is LEAST too
            key = (place[parent], token)
            here = known.get(key)
            if here is None:
                known[key] = here = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                scores.append(score)
                sources.append(source)
                others.append(0.0)
                names.append("")
            elif score > scores[here]:
                scores[here], sources[here] = score, source
            place.append(here)

    def _chances(self, factors: Mapping[str, float]) -> list[float]:
        """q of every node. Where both families propose a token they are wrong only if both are.

        Of two guesses that exclude each other at most one is right: each loses what the other is sure of. Below the
        last node that both propose, each goes on as surely as it would alone.
        """
        copied, modelled = (self._own(family, factors) for family in (0, 1))
        if copied is None or modelled is None:
            return copied or modelled or [1.0]
        alone = self._alone(copied, modelled)
        q, left = [1.0], [1.0]
        for a, b, parent in zip(copied[1:], modelled[1:], self.parents[1:], strict=True):
            if a and b:
                chance = 1.0 - (1.0 - a) * (1.0 - b)
            else:
                own, other = (0, 1) if a else (1, 0)
                mass, rival = alone[own].get(parent, 0.0), min(alone[other].get(parent, 0.0), SUREST)
                share = (a or b) / (copied, modelled)[own][parent]
                chance = q[parent] * share * (1.0 - rival) / (1.0 - mass * rival)
            chance = min(chance, left[parent])
            left[parent] -= chance
            q.append(chance)
            left.append(chance)
        return q

    def _alone(self, *own: Sequence[float]) -> tuple[dict[int, float], dict[int, float]]:
        """Per family, how sure it is below a node of tokens that the other does not propose there."""
        masses: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for a, b, parent in zip(own[0][1:], own[1][1:], self.parents[1:], strict=True):
            if not (a and b):
                family = 0 if a else 1
                masses[family][parent] = masses[family].get(parent, 0.0) + (a or b) / own[family][parent]
        return masses

    def _own(self, family: int, factors: Mapping[str, float]) -> list[float] | None:
        """q of the family's nodes by its own scores, 0 for others' nodes; None if it has no node."""
        scores, sources, q = self.scores[family], self.sources[family], [1.0]
        if not any(sources[1:]):
            return None
        for parent, score, source in zip(self.parents[1:], scores[1:], sources[1:], strict=True):
            q.append(min(q[parent], score * factors.get(source, 1.0)))
        return q

    def foreseen(self, tokens: Sequence[int], family: int) -> int:
        """How many of `tokens` the family's nodes foresaw."""
        node, scores = 0, self.scores[family]
        for depth, token in enumerate(tokens):
            node = self.known.get((node, token), 0)
            if not (node and scores[node]):
                return depth
        return len(tokens)

    def line(self) -> list[int]:
        """The nodes of the path of most expected tokens, the anchor left out."""
        expected = [0.0]
        best = 0
        for node in range(1, len(self.q)):
            expected.append(expected[self.parents[node]] + self.q[node])
            if expected[node] > expected[best]:
                best = node
        path = []
        while best > 0:
            path.append(best)
            best = self.parents[best]
        return path[::-1]

    def tree(self, keep: Sequence[int]) -> DraftTree:
        """The draft of the nodes `keep`, which holds the parent of each; its scores are `q`."""
        order = [0, *sorted(keep)]
        place = {node: i for i, node in enumerate(order)}
        parents = [place.get(self.parents[node], -1) for node in order]
        tree = DraftTree(
            [self.tokens[node] for node in order],
            parents,
            [self.q[node] for node in order],
            [self.source(node) for node in order],
        )
        return tree if parents == list(range(-1, len(order) - 1)) else tree.arranged()

    def source(self, node: int) -> str:
        """Who proposed the node, both where both did."""
        copied, modelled = self.sources[0][node], self.sources[1][node]
        return f"{copied}+{modelled}" if copied and modelled and node else copied or modelled
