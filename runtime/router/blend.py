"""One lane's candidates joined: what each drafter thinks of a node, and what all of them together.

Drafters of two families guess apart from each other: copying drafters, and models. Knows nothing of prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.runtime.drafters.base import MODELS
from tandem.tree import DraftTree

SUREST = 0.99  # that a guess may be of itself where another contradicts it
TENTHS = 10
LEAST = 1e-9  # score of a proposed node: 0 says that it was not
LAST = TENTHS - 1e-6  # so that a score of 1 is in the last tenth
NO_ANCHOR = -1  # token of the root given to a lane without candidates

Factors = Mapping[str, Sequence[float]]
"""By source, what scores of each tenth are to be multiplied with; 1 for a source that is not in it."""


def tenth_of(score: float) -> int:
    """Which tenth of 0 to 1 a score lies in."""
    return int(score * LAST)


def _family(tree: DraftTree) -> int:
    return 1 if not MODELS.isdisjoint(tree.sources) else 0


def _sound(score: float) -> float:
    """Of a proposed node, whose score is not 0 and may be no number."""
    return score if LEAST < score < 1.0 else 1.0 if score >= 1.0 else LEAST


class Blend:
    """Parallel lists over nodes, the anchor first and parents before children; not in depth-first order.

    `scores[family][node]` is the larger score that drafters of the family (0 copies, 1 models) gave the node, 0 where
    none proposed it, `sources[family][node]` the source of that score, `q[node]` the chance that the whole path is
    accepted.
    """

    __slots__ = ("known", "parents", "q", "scores", "sources", "tokens")

    def __init__(self, trees: Sequence[DraftTree], factors: Factors) -> None:
        """Of trees over one anchor; none at all is a root over NO_ANCHOR."""
        first = trees[0] if trees else DraftTree.root(NO_ANCHOR)
        n, family = len(first), _family(first)
        self.tokens, self.parents = first.tokens[:], first.parents[:]
        scores, sources = [_sound(score) for score in first.scores], first.sources[:]
        others, names = [1.0] + [0.0] * (n - 1), ["root"] + [""] * (n - 1)
        self.scores: tuple[list[float], list[float]] = (others, scores) if family else (scores, others)
        self.sources: tuple[list[str], list[str]] = (names, sources) if family else (sources, names)
        self.known: dict[tuple[int, int], int] = dict(
            zip(zip(self.parents, self.tokens, strict=True), range(n), strict=True)
        )
        for tree in trees[1:]:
            self._add(tree)
        self.q = self._chances(factors)

    def __len__(self) -> int:
        return len(self.tokens)

    def _add(self, tree: DraftTree) -> None:
        tokens, parents, known, family = self.tokens, self.parents, self.known, _family(tree)
        scores, sources = self.scores[family], self.sources[family]
        others, names = self.scores[not family], self.sources[not family]
        place = [0]
        rows = zip(tree.parents, tree.tokens, tree.scores, tree.sources, strict=True)
        next(rows)
        for parent, token, score, source in rows:
            above, score = place[parent], _sound(score)
            here = known.setdefault((above, token), len(tokens))
            if here == len(tokens):
                tokens.append(token)
                parents.append(above)
                scores.append(score)
                sources.append(source)
                others.append(0.0)
                names.append("")
            elif score > scores[here]:
                scores[here], sources[here] = score, source
            place.append(here)

    def _chances(self, factors: Factors) -> list[float]:
        """q of every node. Where both families propose a token they are wrong only if both are.

        Of two guesses that exclude each other at most one is right: each loses what the other is sure of. Below the
        last node that both propose, each goes on as surely as it would alone.
        """
        copied, modelled = (self._own(family, factors) for family in (0, 1))
        if copied is None or modelled is None:
            return copied or modelled or [1.0]
        # Of nodes that both propose: how sure each is of children that the other does not, and what is left of 1.
        both = {0: [0.0, 0.0, 1.0]}
        q, ratios = [1.0], [1.0]  # to what the node's own family said
        parents = self.parents
        for node in range(1, len(parents)):
            a, b, parent = copied[node], modelled[node], parents[node]
            if a and b:
                both[node] = [0.0, 0.0, 1.0]
            elif meeting := both.get(parent):
                meeting[1 if b else 0] += b / modelled[parent] if b else a / copied[parent]
        for node in range(1, len(parents)):
            a, b, parent = copied[node], modelled[node], parents[node]
            own = a or b
            meeting = both.get(parent)
            if meeting is None:
                ratio = ratios[parent]
                q.append(own * ratio)
                ratios.append(ratio)
                continue
            if a and b:
                share = (1.0 - (1.0 - a) * (1.0 - b)) / q[parent]
            else:
                mass, rival = meeting[1 if b else 0], meeting[0 if b else 1]
                share = own / (modelled if b else copied)[parent]
                if rival:
                    rival = min(rival, SUREST)
                    share *= (1.0 - rival) / (1.0 - min(mass, SUREST) * rival)
            share = max(LEAST, min(share, meeting[2]))
            meeting[2] -= share
            q.append(q[parent] * share)
            ratios.append(q[-1] / own)
        return q

    def _own(self, family: int, factors: Factors) -> list[float] | None:
        """q of the family's nodes by its own scores, 0 for others' nodes; None if it has no node."""
        scores, sources, parents, q = self.scores[family], self.sources[family], self.parents, [1.0]
        if not any(sources[1:]):
            return None
        for node in range(1, len(parents)):
            score = scores[node]
            if score:
                source, above = sources[node], q[parents[node]]
                if source in factors:
                    score *= factors[source][int(score * LAST)]
                if score > above:
                    score = above
            q.append(score)
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
