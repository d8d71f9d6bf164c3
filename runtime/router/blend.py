"""One lane's candidates joined: what each drafter thinks of a node, and what all of them together.

Drafters of two families guess apart from each other: copying drafters, and models. Knows nothing of prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan

from tandem.runtime.drafters.base import MODELS
from tandem.tree import DraftTree

SUREST = 0.99  # that a guess may be of itself where another contradicts it
TENTHS = 10
LEAST = 1e-9  # score of a proposed node: 0 says that it was not
LAST = TENTHS - 1e-6  # so that a score of 1 is in the last tenth
NO_ANCHOR = -1  # token of the root given to a lane without candidates

Factors = Mapping[str, Sequence[float]]
"""By source, what scores of each tenth are to be multiplied with; 1 for a source that is not in it."""


def _family(tree: DraftTree) -> int:
    return 1 if not MODELS.isdisjoint(tree.sources) else 0


def _sound(scores: list[float]) -> list[float]:
    """Scores of proposed nodes: more than 0, which says that a node was not proposed, at most 1, and numbers."""
    if min(scores) > LEAST and max(scores) <= 1.0 and not isnan(sum(scores)):
        return scores[:]
    return [score if LEAST < score < 1.0 else 1.0 if score >= 1.0 else LEAST for score in scores]


class Blend:
    """Parallel lists over nodes, the anchor first and parents before children; not always in depth-first order.

    `scores[family][node]` is the larger score that drafters of the family (0 copies, 1 models) gave the node, 0 where
    none proposed it, `sources[family][node]` the source of that score, `q[node]` the chance that the whole path is
    accepted. `heard` are the families that propose anything. `arranged` says that the nodes are a tree's, and so in
    depth-first order.
    """

    __slots__ = ("arranged", "heard", "parents", "q", "scores", "sources", "tokens")

    def __init__(self, trees: Sequence[DraftTree], factors: Factors) -> None:
        """Of trees over one anchor; none at all is a root over NO_ANCHOR."""
        first = trees[0] if trees else DraftTree.root(NO_ANCHOR)
        n, family = len(first), _family(first)
        self.tokens, self.parents = first.tokens[:], first.parents[:]
        scores, sources = _sound(first.scores), first.sources[:]
        others, names = [1.0] + [0.0] * (n - 1), ["root"] + [""] * (n - 1)
        self.scores: tuple[list[float], list[float]] = (others, scores) if family else (scores, others)
        self.sources: tuple[list[str], list[str]] = (names, sources) if family else (sources, names)
        self.heard = {family} if n > 1 else set[int]()
        self.arranged = True
        self.q: list[float] = []
        self.extend(trees[1:], factors)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, trees: Sequence[DraftTree], factors: Factors) -> None:
        """More trees over the anchor, as if they had come with those before."""
        if trees:
            nodes = zip(self.parents, self.tokens, strict=True)
            known = dict(zip(nodes, range(len(self.tokens)), strict=True))
            for tree in trees:
                self._add(tree, known)
            self.arranged = False
        self.q = self._chances(factors)

    def _add(self, tree: DraftTree, known: dict[tuple[int, int], int]) -> None:
        """`known` tells nodes by their parent and token."""
        family, size = _family(tree), len(self.tokens)
        tokens, parents, scores, sources = self.tokens, self.parents, self.scores[family], self.sources[family]
        if len(tree) > 1:
            self.heard.add(family)
        place, here = [0], size
        rows = zip(tree.parents, tree.tokens, _sound(tree.scores), tree.sources, strict=True)
        next(rows)
        for parent, token, score, source in rows:
            above = place[parent]
            if (node := known.setdefault((above, token), here)) == here:
                here += 1
                tokens.append(token)
                parents.append(above)
                scores.append(score)
                sources.append(source)
            elif score > scores[node]:
                scores[node], sources[node] = score, source
            place.append(node)
        self.scores[not family].extend([0.0] * (here - size))
        self.sources[not family].extend([""] * (here - size))

    def _chances(self, factors: Factors) -> list[float]:
        """q of every node."""
        if len(self.heard) == 2:
            return self._joined(self._own(0, factors), self._own(1, factors))
        return self._own(max(self.heard), factors) if self.heard else [1.0]

    def _own(self, family: int, factors: Factors) -> list[float]:
        """q of the family's nodes by its own scores, 0 for others' nodes."""
        q, last, factor = [1.0], "", None
        rows = zip(self.parents, self.scores[family], self.sources[family], strict=True)
        next(rows)
        for parent, score, source in rows:
            if score:
                if source is not last:
                    last, factor = source, factors.get(source)
                if factor is not None:
                    score *= factor[int(score * LAST)]
                if score > (above := q[parent]):
                    score = above
            q.append(score)
        return q

    def _joined(self, copied: list[float], modelled: list[float]) -> list[float]:
        """q of both families' nodes. Where both propose a token they are wrong only if both are.

        Of two guesses that exclude each other at most one is right: each loses what the other is sure of. Below the
        last node that both propose, each goes on as surely as it would alone.
        """
        parents = self.parents
        # Of nodes that both propose: how sure each is of children that the other does not, and what is left of 1.
        meetings: list[list[float] | None] = [None] * len(parents)
        for node, (parent, a, b) in enumerate(zip(parents, copied, modelled, strict=True)):
            if a and b:
                meetings[node] = [0.0, 0.0, 1.0]
            elif (meeting := meetings[parent]) is not None:
                if b:
                    meeting[1] += b / modelled[parent]
                else:
                    meeting[0] += a / copied[parent]
        q, ratios = [1.0], [1.0]  # to what the node's own family said
        rows = zip(parents, copied, modelled, strict=True)
        next(rows)
        for parent, a, b in rows:
            above = q[parent]
            if (meeting := meetings[parent]) is None:
                ratio = ratios[parent]
                chance = (a or b) * ratio
                q.append(chance if chance < above else above)  # rounding must not put it in front of its parent
                ratios.append(ratio)
                continue
            if not b:
                share, mass, rival = a / copied[parent], meeting[0], meeting[1]
            elif not a:
                share, rival, mass = b / modelled[parent], meeting[0], meeting[1]
            else:
                share, mass, rival = (1.0 - (1.0 - a) * (1.0 - b)) / above, 0.0, 0.0
            if rival:
                rival = min(rival, SUREST)
                share *= (1.0 - rival) / (1.0 - min(mass, SUREST) * rival)
            share = max(LEAST, min(share, meeting[2]))
            meeting[2] -= share
            q.append(chance := above * share)
            ratios.append(chance / (a or b))
        return q

    @property
    def is_line(self) -> bool:
        return self.parents == list(range(-1, len(self.parents) - 1))

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that `tokens` go along, the anchor first."""
        path, last, wanted, ours = [0], 0, iter(tokens), self.tokens
        token = next(wanted, None)
        for node, parent in enumerate(self.parents):
            if parent == last and ours[node] == token and node:
                last, token = node, next(wanted, None)
                path.append(node)
        return path

    def foreseen(self, tokens: Sequence[int], family: int) -> int:
        """How many of `tokens` the family's nodes foresaw."""
        scores = self.scores[family]
        return sum([scores[node] > 0.0 for node in self.path(tokens)[1:]])

    def line(self) -> list[int]:
        """The nodes of the path of most expected tokens, the anchor left out."""
        expected = [0.0]
        rows = zip(self.parents, self.q, strict=True)
        next(rows)
        for parent, q in rows:
            expected.append(expected[parent] + q)
        best = expected.index(max(expected))
        path = []
        while best > 0:
            path.append(best)
            best = self.parents[best]
        return path[::-1]

    def tree(self, keep: Sequence[int]) -> DraftTree:
        """The draft of the nodes `keep`, which holds the parent of each; its scores are `q`."""
        names = self.sources[max(self.heard, default=0)]
        if len(self.heard) == 2:
            names = ["root"] + [""] * (len(names) - 1)
            for node in keep:
                names[node] = self.source(node)
        tree, nodes = DraftTree(self.tokens, self.parents, self.q, names), [0, *sorted(keep)]
        arranged = self.arranged or [self.parents[node] for node in nodes[1:]] == nodes[:-1]  # a line is
        return tree.subset(nodes) if arranged else tree.arranged(nodes)

    def source(self, node: int) -> str:
        """Who proposed a drafted node, both where both did."""
        copied, modelled = self.sources[0][node], self.sources[1][node]
        return f"{copied}+{modelled}" if copied and modelled else copied or modelled
