"""A target over three tokens whose every row is known, and a drafter that always guesses the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.tree import DraftTree
from tests.fakes import ScriptedExecutor, geometry


class ToyExecutor(ScriptedExecutor):
    """The row behind token t has the logits `rows[t]`, whatever stands before it."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(capacities=geometry(vocab_size=len(rows)))
        self._rows = rows.astype(np.float32)

    def _row_logits(self, seen: list[tuple[bytes, int]]) -> np.ndarray:
        return self._rows[seen[-1][1]]


class Stubborn:
    """A drafter that proposes `tokens` below `parents` (0 is the anchor) in every round."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        self._tokens = tokens
        self._parents = list(range(len(tokens)) if parents is None else parents)
        self._anchor = -1

    def begin(self, prompt: Sequence[int]) -> None:
        self._anchor = prompt[-1]

    def observe(self, tokens: Sequence[int]) -> None:
        self._anchor = tokens[-1]

    def sync(self, rows: Sequence[int]) -> None:
        pass

    def end(self) -> None:
        pass

    def tree(self) -> DraftTree:
        n = len(self._tokens)
        return DraftTree([self._anchor, *self._tokens], [-1, *self._parents], [1.0] * (n + 1), ["root", *["toy"] * n])

    def propose(self, max_nodes: int) -> list[DraftTree]:
        return [self.tree().truncate(max_nodes + 1)]
