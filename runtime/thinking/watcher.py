"""Watches thoughts for loops: three arms, each a function of the block's tokens and of nothing else.

`docs/thinking.md` has the arms' definitions and what their bounds were measured on. A token costs the same however long
the block is. Knows nothing of tags, budgets or engines.
"""

from __future__ import annotations

from array import array
from collections import deque
from enum import StrEnum

import numpy as np

from tandem.keys import MAX_TREE_ROWS

PATTERN_TOKENS = 128
"""Fewest tokens that a pattern must fill."""
PATTERN_COPIES = 4
"""Fewest copies of it among them."""
PATTERN_MOST = 64
"""Longest pattern looked for."""

COPIED_GRAM = 16
COPIED_WINDOW = 256
COPIED_SHARE = 0.9
"""Share of the window's grams that the block must have had before."""

STALE_GRAM = 4
STALE_WINDOW = 1024
STALE_SHARE = 0.95
"""The same of shorter grams: what is left is all that is new."""

TAKEN_BACK = MAX_TREE_ROWS + 1
"""Most tokens that are taken back: those of a round."""


class Loop(StrEnum):
    """Which arm saw a loop."""

    PATTERN = "pattern"
    COPIED = "copied"
    STALE = "stale"


class Watcher:
    """Says after each token of one block whether it loops. Up to TAKEN_BACK tokens may be taken back again."""

    def __init__(self) -> None:
        self._ids = array("q")
        self._pattern = Pattern()
        self._copied = Repeats(COPIED_GRAM, COPIED_WINDOW)
        self._stale = Repeats(STALE_GRAM, STALE_WINDOW)

    def push(self, token: int) -> Loop | None:
        """One more token. The first arm that fires in the order of `Loop`."""
        self._ids.append(token)
        pattern = self._pattern.push(self._ids)
        copied = self._copied.push(self._ids) >= COPIED_SHARE
        stale = self._stale.push(self._ids) >= STALE_SHARE
        return Loop.PATTERN if pattern else Loop.COPIED if copied else Loop.STALE if stale else None

    def pop(self) -> None:
        """Takes the last token back."""
        self._pattern.pop()
        self._copied.pop(self._ids)
        self._stale.pop(self._ids)
        self._ids.pop()


class Pattern:
    """Whether a text ends with a pattern of 1 to PATTERN_MOST tokens, again and again."""

    _NEEDED = np.array([max(PATTERN_TOKENS, PATTERN_COPIES * n) - n for n in range(1, PATTERN_MOST + 1)])

    def __init__(self) -> None:
        # For each length n: how many tokens up to here equal the one n before, without a gap.
        self._runs = deque([np.zeros(PATTERN_MOST, np.int64)], maxlen=TAKEN_BACK + 1)

    def push(self, ids: array[int]) -> bool:
        """`ids` is the text with its new last token."""
        before = np.array(ids[-2 : -PATTERN_MOST - 2 : -1], np.int64)
        runs = np.zeros(PATTERN_MOST, np.int64)
        runs[: len(before)] = (self._runs[-1][: len(before)] + 1) * (before == ids[-1])
        self._runs.append(runs)
        return bool((runs >= self._NEEDED).any())

    def pop(self) -> None:
        self._runs.pop()


class Repeats:
    """Which share of the n-grams that end in the last `window` tokens of a text stood in it before."""

    def __init__(self, n: int, window: int) -> None:
        self._n, self._window = n, window
        self._grams: set[bytes] = set()
        self._repeated = bytearray()  # of the gram that ends at each token
        self._count = 0  # of those in the window

    def push(self, ids: array[int]) -> float:
        """The share with the new last token of `ids`; 0 before the window is full of grams."""
        gram, whole = ids[-self._n :].tobytes(), len(ids) >= self._n
        repeated = gram in self._grams
        if whole:
            self._grams.add(gram)
        self._repeated.append(repeated)
        self._count += repeated
        if len(ids) > self._window:
            self._count -= self._repeated[-self._window - 1]
        return self._count / self._window if len(ids) >= self._window + self._n - 1 else 0.0

    def pop(self, ids: array[int]) -> None:
        """Takes the last token of `ids` back, which still has it."""
        if len(ids) > self._window:
            self._count += self._repeated[-self._window - 1]
        repeated = self._repeated.pop()
        self._count -= repeated
        if not repeated:
            self._grams.discard(ids[-self._n :].tobytes())
