"""The draft tree: guesses below the last committed token, in depth-first pre-order.

Knows nothing of drafters, prices or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


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

    def arranged(self, keep: Sequence[int] = ()) -> DraftTree:
        """As `subset`, of all nodes if none are given, in depth-first pre-order with likelier children first.

        Of this tree it is enough that parents stand before their children.
        """
        parents = self.parents
        below: list[list[int] | None] = [None] * len(parents)
        for node in sorted(keep) or range(len(parents)):
            if node:
                parent = parents[node]
                if (children := below[parent]) is None:
                    below[parent] = [node]
                else:
                    children.append(node)
        order: list[int] = []
        stack = [0]
        while stack:
            node = stack.pop()
            order.append(node)
            while children := below[node]:
                if len(children) > 1:
                    children.sort(key=self.scores.__getitem__)
                    stack += children
                    node = stack.pop()
                else:
                    node = children[0]
                order.append(node)
        return self._ordered(order)

    def _ordered(self, order: Sequence[int]) -> DraftTree:
        """The tree of the nodes `order`, each behind its parent."""
        tokens, parents, scores, sources = self.tokens, self.parents, self.scores, self.sources
        place = [0] * len(tokens) + [-1]  # the last is that of the anchor's parent, -1
        for i, node in enumerate(order):
            place[node] = i
        return DraftTree(
            [tokens[node] for node in order],
            [place[parents[node]] for node in order],
            [scores[node] for node in order],
            [sources[node] for node in order],
        )

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
