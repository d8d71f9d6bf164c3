"""The draft tree: guesses below the last committed token, in depth-first pre-order.

Knows nothing of drafters, prices or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter


@dataclass(slots=True)
class DraftTree:
    """Parallel lists over nodes. Node 0 is the anchor (parent -1, score 1).

    A parent's index is below its children's and every subtree is a contiguous range, so any prefix of the
    lists is a tree. `scores[i]` is the drafter's probability that the whole path to node i is accepted.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [1.0])
    sources: list[str] = field(default_factory=lambda: ["root"])

    @classmethod
    def root(cls, anchor: int) -> DraftTree:
        return cls([anchor])

    @classmethod
    def chain(cls, anchor: int, tokens: Sequence[int], scores: Sequence[float], source: str) -> DraftTree:
        """A line of guesses; `scores` are path probabilities, so they never rise."""
        n = len(tokens)
        return cls([anchor, *tokens], list(range(-1, n)), [1.0, *scores], ["root", *[source] * n])

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_drafted(self) -> int:
        return len(self.tokens) - 1

    @property
    def is_chain(self) -> bool:
        return self.parents == list(range(-1, len(self.parents) - 1))

    @property
    def is_tree(self) -> bool:
        """Whether the lists are of one length, the anchor's parent is -1 and that of every other node stands before it.

        All that is asked of a tree takes this for granted.
        """
        first, *parents = self.parents or [0]
        sizes = {len(self.tokens), len(self.parents), len(self.scores), len(self.sources)}
        return first == -1 and len(sizes) == 1 and all(0 <= parent <= i for i, parent in enumerate(parents))

    def depths(self) -> list[int]:
        """Distance from the anchor, per node."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """Node indices from the anchor down to `node`."""
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def children(self, node: int) -> list[int]:
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def subset(self, keep: Sequence[int]) -> DraftTree:
        """The tree of the nodes `keep`, which holds 0 and the parent of each of its nodes."""
        return self._ordered(sorted(keep))

    def _ordered(self, order: Sequence[int]) -> DraftTree:
        """The tree of the nodes `order`, each behind its parent."""
        if len(order) == 1:
            return self.truncate(1)
        place, pick = {node: i for i, node in enumerate(order)}, itemgetter(*order)
        above = [-1, *map(place.__getitem__, pick(self.parents)[1:])]
        return DraftTree(list(pick(self.tokens)), above, list(pick(self.scores)), list(pick(self.sources)))

    def arranged(self) -> DraftTree:
        """The same tree in depth-first pre-order, likelier children first; parents need only stand before children."""
        below: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents[1:], 1):
            below[parent].append(node)
        order, stack = list[int](), [0]
        while stack:
            node = stack.pop()
            order.append(node)
            while children := below[node]:
                if len(children) > 1:
                    children.sort(key=self.scores.__getitem__)
                    stack += children[:-1]
                node = children[-1]
                order.append(node)
        return self._ordered(order)

    def merged(self, other: DraftTree) -> DraftTree:
        """Both trees over one anchor: an equal prefix becomes one path, and a shared node keeps its larger score."""
        merged = DraftTree(self.tokens[:], self.parents[:], self.scores[:], self.sources[:])
        known = {(self.parents[i], self.tokens[i]): i for i in range(1, len(self))}
        place = [0]
        for node in range(1, len(other)):
            key = (place[other.parents[node]], other.tokens[node])
            here = known.setdefault(key, len(merged))
            place.append(here)
            if here == len(merged):
                merged.tokens.append(key[1])
                merged.parents.append(key[0])
                merged.scores.append(other.scores[node])
                merged.sources.append(other.sources[node])
            elif other.scores[node] > merged.scores[here]:
                merged.scores[here], merged.sources[here] = other.scores[node], other.sources[node]
        return merged.arranged()

    def truncate(self, num_nodes: int) -> DraftTree:
        """The tree of the first `num_nodes` nodes."""
        n = num_nodes
        return DraftTree(self.tokens[:n], self.parents[:n], self.scores[:n], self.sources[:n])

    def follow(self, node: int, token: int) -> int | None:
        """The child of `node` that carries `token`."""
        for child in range(node + 1, len(self.tokens)):
            if self.parents[child] == node and self.tokens[child] == token:
                return child
        return None
