"""One lane's share of a block drafter: the lattice that was guessed, trees of it, what came of it.

A block drafter guesses all tokens of a block in one pass, from what the target thought of the text before (DFlash2,
z-lab; `compile/models/dflash2.py` is the model). Knows nothing of passes, of the ring, of prices or of other lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tandem.runtime.drafters.lattice import Lattice
from tandem.runtime.drafters.reach import Reach
from tandem.runtime.drafters.reader import Claim, TapReader
from tandem.tree import DraftTree

LEAST = 0.02
"""Chances below it are not drafted, as in `votes`."""


class Guessed(NamedTuple):
    """A lattice as it came out of a pass; see `Lattice`."""

    candidates: np.ndarray  # [slots, k] int32
    scores: np.ndarray  # [slots, k, k] float32
    walk: list[int]  # [slots]


class BlockDrafter(TapReader):
    """Drafts trees of the lattice that it is given each round. `usual` is how far walks come true in all texts."""

    def __init__(self, lane: int, claim: Claim, usual: Reach) -> None:
        super().__init__(lane, claim)
        self.reach = Reach(usual)
        self._guessed: Guessed | None = None
        self._most = 0

    def guess(self, guessed: Guessed, most: int) -> None:
        """What the model gives for the round at hand, of which at most `most` nodes are worth a look."""
        self._guessed, self._most = guessed, most

    def lose(self) -> list[int]:
        self._guessed = None
        return super().lose()

    def propose(self, max_nodes: int) -> list[DraftTree]:
        """The likeliest tree around the greedy walk, if anything is likely enough."""
        if self._guessed is None or max_nodes < 1:
            return []
        return [Lattice(self.ids[-1], *self._guessed).tree(min(max_nodes, self._most), "nodes", LEAST)]

    def observe(self, tokens: Sequence[int]) -> None:
        self._count(tokens)
        super().observe(tokens)

    def _count(self, tokens: Sequence[int]) -> None:
        """Scores the walk against what came, as far as it was right and one further."""
        guessed, self._guessed = self._guessed, None
        if guessed is None:
            self.reach.age()
            return
        hits = trials = 0
        for line, index, came in zip(guessed.candidates, guessed.walk, tokens, strict=False):
            trials += 1
            if line[index] != came:
                break
            hits += 1
        self.reach.learn(hits, trials)
