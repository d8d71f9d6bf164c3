"""Where the last tokens of a text stood before: per order, the places that followed the same n tokens.

Knows nothing of drafts. Places are chained from the newest back, as in a dictionary coder's hash chains.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

ORDERS = range(2, 9)
LONGER = (32, 16)  # agreements looked for behind a match of the longest order
MAX_PLACES = 24  # newest places read of one n-gram
BASE, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1  # odd multiplier of the rolling hash


class ContextIndex:
    """Index over one growing text; costs O(orders) a token, and holds between `window` and 2 `window` tokens.

    A place p of order n means: tokens[p-n:p] equal the n tokens sought, and tokens[p] followed. Hashes only
    find places; every place handed out has been compared token by token.
    """

    def __init__(self, window: int = 32_768) -> None:
        self._window = window
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts over with these tokens (the last `window` of them)."""
        self.tokens = list(tokens[-self._window :])
        length = len(self.tokens)
        value = np.array(self.tokens, np.uint64) + np.uint64(1)
        hashes = value
        # Index n-1 of each list belongs to n tokens; lengths outside ORDERS only carry the hash along.
        self._hash = [0] * ORDERS.stop
        self._newest: list[dict[int, int]] = [{} for _ in range(ORDERS.stop)]
        self._older: list[array[int]] = [array("i") for _ in range(ORDERS.stop)]
        for n in range(1, ORDERS.stop):
            if n > 1:
                hashes = np.concatenate((value[:1], value[1:] + np.uint64(BASE) * hashes[:-1]))
            self._hash[n] = int(hashes[-1]) if length else 0
            if n in ORDERS:
                self._link(n, hashes[n - 1 : length - 1] if length > n else hashes[:0])

    def _link(self, n: int, keys: np.ndarray) -> None:
        """Chains all n-grams that a token follows; keys[i] is the hash of tokens[i:i+n], followed at place i + n."""
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
        older = np.full(len(self.tokens), -1, np.int32)
        older[order[again + 1] + n] = order[again] + n
        self._older[n] = array("i", older.tobytes())
        self._newest[n] = dict(zip(keys.tolist(), range(n, n + len(keys)), strict=True))

    def append(self, token: int) -> None:
        """One more token of the text."""
        if len(self.tokens) >= 2 * self._window:
            self.begin(self.tokens)
        place, hashes = len(self.tokens), self._hash
        for n in ORDERS:
            newest = self._newest[n]
            if place >= n:
                self._older[n].append(newest.get(hashes[n], -1))
                newest[hashes[n]] = place
            else:
                self._older[n].append(-1)
        self.tokens.append(token)
        for n in range(ORDERS.stop - 1, 1, -1):
            hashes[n] = (token + 1 + BASE * hashes[n - 1]) & MASK
        hashes[1] = token + 1

    def places(self, min_order: int) -> tuple[list[int], int]:
        """Places, newest first, that follow the longest match of the text's end, and how many tokens agree.

        The agreement is an order, or 16 or 32 where that many tokens before the place are equal; then only the
        places that agree so far are given. ([], 0) without a match of `min_order` tokens.
        """
        tokens = self.tokens
        for n in range(ORDERS.stop - 1, min_order - 1, -1):
            end, found = tokens[-n:], []
            place = self._newest[n].get(self._hash[n], -1)
            for _ in range(MAX_PLACES):
                if place < 0:
                    break
                if tokens[place - n : place] == end:
                    found.append(place)
                place = self._older[n][place]
            if found:
                return self._longest(found) if n == ORDERS.stop - 1 else (found, n)
        return [], 0

    def _longest(self, found: list[int]) -> tuple[list[int], int]:
        tokens = self.tokens
        for agreed in LONGER:
            end = tokens[-agreed:]
            far = [place for place in found if place >= agreed and tokens[place - agreed : place] == end]
            if far:
                return far, agreed
        return found, ORDERS.stop - 1
