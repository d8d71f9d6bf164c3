"""From a block drafter's lattice to a draft tree: the greedy walk through it first, then what else is likely.

A lattice has a slot for each token ahead, with a few candidates each, and scores of a candidate behind each candidate
of the slot before. Knows nothing of how it was computed or what a row costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal

import numpy as np

from tandem.runtime.drafters.base import BLOCK
from tandem.tree import DraftTree

TEMPERATURE = 1.4
"""At which scores are read for the router: a lattice is surer of itself than it is right."""
Mode = Literal["paths", "nodes"]
Step = tuple[float, int, int, int]
"""A node that may come next: minus its score, the row it stands in, its rank there, its parent."""


class Lattice:
    """`candidates` int [slots, k] are token ids and `scores` fp32 [slots, k, k] say how likely each is: by slot, by the
    candidate of the slot before (of the first slot only row 0 counts, behind the anchor), by candidate. `greedy` are
    the candidates that the drafter's own walk takes, one a slot.

    A candidate's chance behind another is the softmax of its row over `temperature`; a node's score is the product of
    these along its path.
    """

    def __init__(
        self,
        anchor: int,
        candidates: np.ndarray,
        scores: np.ndarray,
        greedy: Sequence[int],
        temperature: float = TEMPERATURE,
    ) -> None:
        slots, k = candidates.shape
        if scores.shape != (slots, k, k) or len(greedy) != slots:
            raise ValueError(f"a lattice of {slots} slots by {k} has scores {scores.shape} and a walk of {len(greedy)}")
        self._anchor, self._greedy, self._num_slots, self._k = anchor, greedy, slots, k
        self._tokens: list[list[int]] = candidates.tolist()
        # Candidates first, so that sums and maxima run along what lies side by side.
        by_row = np.ascontiguousarray(scores.reshape(slots * k, k).T, np.float32)
        chances = np.exp((by_row - by_row.max(0)) / np.float32(temperature))
        self._by_row = np.ascontiguousarray((chances / chances.sum(0)).T)
        self._ranked: dict[int, tuple[list[float], list[tuple[float, int]]]] = {}

    def chain(self, max_nodes: int, least: float = 0.0) -> DraftTree:
        """The greedy walk alone, as far as its nodes' scores are at least `least`."""
        tokens, path, row, reach = list[int](), list[float](), 0, 1.0
        for slot, index in enumerate(self._greedy[:max_nodes]):
            reach *= float(self._by_row[row, index])
            if reach < least:
                break
            tokens.append(self._tokens[slot][index])
            path.append(reach)
            row = (slot + 1) * self._k + index
        return DraftTree.chain(self._anchor, tokens, path, BLOCK)

    def tree(self, max_nodes: int, mode: Mode = "paths", least: float = 0.0) -> DraftTree:
        """The greedy walk, and as many nodes more as `max_nodes` leaves room for; none with a score below `least`.

        "nodes" adds the likeliest ones: no tree of as many nodes around the walk is expected to have more accepted.
        "paths" takes each likely side step and follows it greedily to the lattice's end, as a lone leaf brings one
        token at most.
        """
        tree, frontier, k = DraftTree.root(self._anchor), list[Step](), self._k
        tokens, parents, scores, last = tree.tokens, tree.parents, tree.scores, self._num_slots * k

        def add(row: int, index: int, chance: float, parent: int) -> int:
            """One node; the row of its children."""
            slot = row // k
            tokens.append(self._tokens[slot][index])
            parents.append(parent)
            scores.append(chance)
            return (slot + 1) * k + index

        def nominate(row: int, rank: int, parent: int) -> None:
            if rank < k and (score := scores[parent] * self._rank(row, rank)[0]) >= least:
                heappush(frontier, (-score, row, rank, parent))

        spine: dict[int, int] = {}  # row -> candidate taken in it already
        row = 0
        for index in self._greedy[:max_nodes]:
            parent = len(tokens) - 1
            if (score := scores[parent] * float(self._by_row[row, index])) < least:
                break
            spine[row] = index
            nominate(row, int(self._rank(row, 0)[1] == index), parent)
            row = add(row, index, score, parent)
        on_spine = len(tokens)
        if row < last:
            nominate(row, 0, on_spine - 1)
        while frontier and len(tokens) <= max_nodes:
            score, row, rank, parent = heappop(frontier)
            nominate(row, rank + 1, parent)
            index = self._rank(row, rank)[1]
            if parent < on_spine - 1 and spine.get(row) == index:
                continue
            row = add(row, index, -score, parent)
            while mode == "paths" and row < last and len(tokens) <= max_nodes:
                parent = len(tokens) - 1
                chance, index = self._rank(row, 0)
                if (score := scores[parent] * chance) < least:
                    break
                nominate(row, 1, parent)
                row = add(row, index, score, parent)
            if row < last:
                nominate(row, 0, len(tokens) - 1)
        tree.sources += [BLOCK] * (len(tokens) - 1)
        return tree.arranged()

    def _rank(self, row: int, rank: int) -> tuple[float, int]:
        """The chance and the candidate in place `rank` of a row (slot times k, plus the candidate of the slot before),
        likeliest first. Few are ever asked for, so each is sought when it is."""
        if row not in self._ranked:
            self._ranked[row] = self._by_row[row].tolist(), []
        rest, ranked = self._ranked[row]
        while len(ranked) <= rank:
            chance = max(rest)
            index = rest.index(chance)
            rest[index] = -1.0
            ranked.append((chance, index))
        return ranked[rank]
