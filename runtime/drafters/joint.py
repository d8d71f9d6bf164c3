"""Two drafters of one lane as one: what both foresee is one node, likelier than by either's word alone.

Knows nothing of how either guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tandem.runtime.drafters.base import Drafter
from tandem.tree import DraftTree

SOURCE = "both"


class JointDrafter:
    """Offers the joint tree of `first` and `second`, and each line of theirs: lines have a price of their own."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._drafters = (first, second)

    def begin(self, prompt: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.begin(prompt)

    def propose(self, max_nodes: int) -> list[DraftTree]:
        ours, theirs = (drafter.propose(max_nodes) for drafter in self._drafters)
        if not (ours and theirs):
            return ours or theirs
        tree = joint(reduce(DraftTree.merged, ours), reduce(DraftTree.merged, theirs))
        lines = [retraced(tree, line) for line in (*ours, *theirs) if line.is_chain]
        return [likeliest(tree, max_nodes), *lines]

    def sync(self, rows: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.sync(rows)

    def observe(self, tokens: Sequence[int]) -> None:
        for drafter in self._drafters:
            drafter.observe(tokens)


def joint(one: DraftTree, other: DraftTree) -> DraftTree:
    """Both trees over one anchor, an equal prefix one path.

    Let p and q be the chances of a node given its parent, in either tree. Where both have it that is 1 - (1-p)(1-q):
    wrong only if both are. One token alone can follow, so siblings whose chances sum above 1 are scaled down to it.
    """
    tree, children = DraftTree.root(one.tokens[0]), (_children(one), _children(other))
    places: list[tuple[int, int, int]] = [(0, 0, 0)]  # of a node: its own, and that in either tree, -1 for none
    while places:
        here, *there = places.pop()
        first, second = (below.get(node, {}) for below, node in zip(children, there, strict=True))
        nodes = [(token, first.get(token, -1), second.get(token, -1)) for token in {**first, **second}]
        chances = [1.0 - (1.0 - _chance(one, i)) * (1.0 - _chance(other, j)) for _, i, j in nodes]
        reach = tree.scores[here] / max(1.0, sum(chances))
        for (token, i, j), chance in zip(nodes, chances, strict=True):
            source = SOURCE if min(i, j) > 0 else one.sources[i] if i > 0 else other.sources[j]
            places.append((len(tree), i, j))
            tree.tokens.append(token)
            tree.parents.append(here)
            tree.scores.append(reach * chance)
            tree.sources.append(source)
    return tree.arranged()


def retraced(tree: DraftTree, line: DraftTree) -> DraftTree:
    """The line of `tree` that has the tokens of `line`, which is in it."""
    path = [0]
    for token in line.tokens[1:]:
        node = tree.follow(path[-1], token)
        assert node is not None, "the line is one of those joined"
        path.append(node)
    return tree.subset(path)


def likeliest(tree: DraftTree, max_nodes: int) -> DraftTree:
    """The tree of the `max_nodes` drafted nodes of the best scores."""
    if tree.num_drafted <= max_nodes:
        return tree
    best = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])
    return tree.subset([0, *best[:max_nodes]])


def _children(tree: DraftTree) -> dict[int, dict[int, int]]:
    """Of each node with any, its children by token."""
    children: dict[int, dict[int, int]] = {}
    for node in range(1, len(tree)):
        children.setdefault(tree.parents[node], {})[tree.tokens[node]] = node
    return children


def _chance(tree: DraftTree, node: int) -> float:
    """That of `node` given its parent; 0 of no node."""
    return tree.scores[node] / tree.scores[tree.parents[node]] if node > 0 else 0.0
