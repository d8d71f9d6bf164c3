"""From a block drafter's lattice to a draft tree: the greedy walk through it first, then what else is likely.

A lattice has a slot for each token ahead, with a few candidates each, and scores of a candidate behind each candidate
of the slot before. Knows nothing of how it was computed or what a row costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import mul
from typing import Literal

import numpy as np

from tandem.runtime.drafters.base import BLOCK
from tandem.tree import DraftTree

TEMPERATURE = 1.4
"""At which scores are read for the router: a lattice is surer of itself than it is right."""
Mode = Literal["paths", "nodes"]
Step = tuple[float, int, int, list[float] | int]
"""Nodes that may come next: minus the largest score among them, the row they stand in, their parent, and what is left
of the row: chances, TAKEN where the candidate is in the tree behind this parent. Of a row that was not read yet, minus
what the score can be at most, and the candidate that is taken."""
TAKEN, CERTAIN = -1.0, 1.00001


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
        rows = np.array(scores.reshape(slots * k, k).T, np.float32, order="C")
        rows -= rows.max(0)
        rows /= np.float32(temperature)
        np.exp(rows, out=rows)
        rows /= rows.sum(0)
        self._by_row = np.ascontiguousarray(rows.T)

    def chain(self, max_nodes: int) -> DraftTree:
        """The greedy walk alone."""
        tokens, path, row, reach = list[int](), list[float](), 0, 1.0
        for slot, index in enumerate(self._greedy[:max_nodes]):
            reach *= float(self._by_row[row, index])
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
        k, by_row, ids, last = self._k, self._by_row, self._tokens, self._num_slots * self._k
        tokens, parents, scores, frontier = self._walk(max_nodes, least)
        while frontier and len(tokens) <= max_nodes:
            score, row, parent, others = heappop(frontier)
            if isinstance(others, int):
                index, others = others, by_row[row].tolist()
                others[index] = TAKEN
                if (chance := max(others)) > TAKEN and (reach := scores[parent] * chance) >= least:
                    heappush(frontier, (-reach, row, parent, others))
                continue
            index = others.index(max(others))
            others[index] = TAKEN
            if (chance := max(others)) > TAKEN and (reach := scores[parent] * chance) >= least:
                heappush(frontier, (-reach, row, parent, others))
            reach = -score
            while True:
                slot, node = row // k, len(tokens)
                tokens.append(ids[slot][index])
                parents.append(parent)
                scores.append(reach)
                row, parent = (slot + 1) * k + index, node
                if row >= last or node >= max_nodes:
                    break
                rest = by_row[row].tolist()
                chance = max(rest)
                if mode == "nodes":
                    if reach * chance >= least:
                        heappush(frontier, (-reach * chance, row, node, rest))
                    break
                index = rest.index(chance)
                if (beside := reach * (CERTAIN - chance)) >= least:
                    heappush(frontier, (-beside, row, node, index))
                reach *= chance
                if reach < least:
                    break
        return DraftTree(tokens, parents, scores, ["root"] + [BLOCK] * (len(tokens) - 1)).arranged()

    def _walk(self, max_nodes: int, least: float) -> tuple[list[int], list[int], list[float], list[Step]]:
        """Tokens, parents and scores of the greedy walk's likely part, and the steps beside it.

        Most of these are never looked at: they stand for what they can be at most until they are due.
        """
        walk, k = self._greedy[:max_nodes], self._k
        rows = [0, *[slot * k + index for slot, index in enumerate(walk, 1)]][: len(walk)]
        taken = self._by_row[rows, walk].tolist()
        scores = [score for score in accumulate(taken, mul, initial=1.0) if score >= least]
        tokens = [self._anchor, *[ids[index] for ids, index in zip(self._tokens, walk, strict=False)]][: len(scores)]
        steps: list[Step] = [
            (-beside, row, slot, index)
            for slot, (reach, chance, row, index) in enumerate(zip(scores, taken, rows, walk, strict=False))
            if (beside := reach * (CERTAIN - chance)) >= least
        ]
        heapify(steps)
        return tokens, list(range(-1, len(scores) - 1)), scores, steps
