"""From a block drafter's lattice to a draft tree: the greedy walk through it first, then what else is likely.

A lattice has a slot for each token ahead, with a few candidates each, and scores of a candidate behind each candidate
of the slot before. Knows nothing of how it was computed or what a row costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from tandem.runtime.drafters.base import BLOCK
from tandem.tree import DraftTree

TEMPERATURE = 1.4
"""At which scores are read for the router: a lattice is surer of itself than it is right."""
Mode = Literal["paths", "nodes"]
Step = tuple[float, int, int, int]
"""A node that may come next: minus its score, the row it stands in, its parent, its candidate among all slots'."""
CERTAIN = 1.00001


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
        self._anchor, self._greedy, self._k, self._candidates = anchor, greedy, k, candidates
        # Candidates first, so that sums and maxima run along what lies side by side.
        chances = np.array(scores.reshape(slots * k, k).T, np.float32, order="C")
        chances -= chances.max(0)
        chances /= np.float32(temperature)
        np.exp(chances, out=chances)
        sums = chances.sum(0)
        chances /= sums
        self._chances, self._largest = chances, np.float32(1.0) / sums  # of each row: exp(0) over its sum

    def chain(self, max_nodes: int) -> DraftTree:
        """The greedy walk alone."""
        tokens, scores, row = list[int](), [1.0], 0
        for slot, index in enumerate(self._greedy[:max_nodes]):
            tokens.append(self._candidates.item(slot, index))
            scores.append(scores[-1] * self._chances.item(index, row))
            row = (slot + 1) * self._k + index
        return DraftTree.chain(self._anchor, tokens, scores[1:], BLOCK)

    def tree(self, max_nodes: int, mode: Mode = "paths", least: float = 0.0) -> DraftTree:
        """The greedy walk, and as many nodes more as `max_nodes` leaves room for; none with a score below `least`.

        "nodes" adds the likeliest ones: no tree of as many nodes around the walk is expected to have more accepted.
        "paths" takes each likely side step and follows it greedily to the lattice's end, as a lone leaf brings one
        token at most.
        """
        k, token, largest, last = self._k, self._candidates.item, self._largest.item, self._largest.size
        tokens, scores, frontier = self._walk(max_nodes, least)
        parents = list(range(-1, len(tokens) - 1))
        while frontier and len(tokens) <= max_nodes:
            score, row, parent, cell = heappop(frontier)
            reach = -score
            while True:
                node = len(tokens)
                tokens.append(token(cell))
                parents.append(parent)
                scores.append(reach)
                row = cell + k
                if row >= last or node >= max_nodes or (ahead := reach * largest(row)) < least:
                    break
                steps = self._steps(row, node, reach, least)
                if mode == "paths":
                    parent, reach = node, ahead
                    _, _, _, cell = taken = min(steps)
                    steps.remove(taken)
                for step in steps:
                    heappush(frontier, step)
                if mode == "nodes":
                    break
        return DraftTree(tokens, parents, scores, ["root"] + [BLOCK] * (len(tokens) - 1)).arranged()

    def _walk(self, max_nodes: int, least: float) -> tuple[list[int], list[float], list[Step]]:
        """Tokens and scores of the greedy walk's likely part, and the steps beside it."""
        tokens, scores, frontier = [self._anchor], [1.0], list[Step]()
        row, reach = 0, 1.0
        for node, index in enumerate(self._greedy[:max_nodes]):
            cell, chance = node * self._k + index, self._chances.item(index, row)
            if reach * (CERTAIN - chance) >= least:
                frontier += [step for step in self._steps(row, node, reach, least) if step[3] != cell]
            if (reach := reach * chance) < least:
                break
            tokens.append(self._candidates.item(cell))
            scores.append(reach)
            row = cell + self._k
        heapify(frontier)
        return tokens, scores, frontier

    def _steps(self, row: int, node: int, reach: float, least: float) -> list[Step]:
        """Those behind `node`, which the score `reach` and the row `row` belong to."""
        chances = self._chances[:, row].tolist()
        return [
            (-score, row, node, cell)
            for cell, chance in enumerate(chances, row - row % self._k)
            if (score := reach * chance) >= least
        ]
