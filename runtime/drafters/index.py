"""Where the last tokens of a text stood before: the places that followed the same n tokens.

Knows nothing of drafts. Places are chained from the newest back, as in a dictionary coder's hash chains.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

ORDERS = (8, 4, 2)
"""Lengths that are indexed; agreements between them are told apart by looking at the places found."""
BEYOND = {8: (128, 64, 32, 16), 4: (7, 6, 5), 2: (3,)}
"""Longer agreements looked for among the places of an order, longest first."""
MAX_PLACES = 24  # newest places read of one n-gram


class ContextIndex:
    """Index over one growing text; costs O(orders) a token, and holds between `window` and 2 `window` tokens.

    A place p of order n means: tokens[p-n:p] equal the n tokens sought, and tokens[p] followed. Hashes only
    find places; every place handed out has been compared token by token. What was appended is indexed by the next
    search, so a text in which nothing is sought costs nothing.
    """

    def __init__(self, window: int = 32_768) -> None:
        self._window = window
        self.begin(())

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts over with these tokens (the last `window` of them)."""
        self.tokens = list(tokens[-self._window :])
        self._num_indexed = 0
        self._newest: list[dict[int, int]] = [{} for _ in ORDERS]
        self._older = [array("i") for _ in ORDERS]
        self._ends = [0] * len(ORDERS)  # hashes of the indexed text's last n tokens
        self._catch_up()

    def extend(self, tokens: Sequence[int]) -> None:
        """More of the text."""
        self.tokens += tokens

    def _catch_up(self) -> None:
        if len(self.tokens) > 2 * self._window:
            self.begin(self.tokens)
        tokens, first, last = self.tokens, self._num_indexed, len(self.tokens)
        for i, n in enumerate(ORDERS):
            newest, older, end = self._newest[i], self._older[i], self._ends[i]
            for place in range(first, min(n, last)):
                older.append(-1)
                end = hash(tuple(tokens[: place + 1]))
            for place in range(max(first, n), last):
                older.append(newest.get(end, -1))
                newest[end] = place
                end = hash(tuple(tokens[place - n + 1 : place + 1]))
            self._ends[i] = end
        self._num_indexed = last

    def places(self, min_order: int) -> tuple[list[int], int]:
        """Places, newest first, that follow the longest match of the text's end, and how many tokens agree.

        They are sought among the newest MAX_PLACES of the longest order that has any. The agreement is an order or a
        length beyond it. ([], 0) without a match of `min_order` tokens.
        """
        self._catch_up()
        tokens = self.tokens
        for i, n in enumerate(ORDERS):
            place = self._newest[i].get(self._ends[i], -1)
            if place < 0:
                continue
            end, older, found = tokens[-n:], self._older[i], []
            for _ in range(MAX_PLACES):
                if tokens[place - n : place] == end:
                    found.append(place)
                place = older[place]
                if place < 0:
                    break
            if found:
                found, agreed = self._longest(found, n)
                return (found, agreed) if agreed >= min_order else ([], 0)
        return [], 0

    def _longest(self, found: list[int], order: int) -> tuple[list[int], int]:
        """Those of the places `found` at which most tokens agree, and how many."""
        tokens = self.tokens
        for agreed in BEYOND[order]:
            end = tokens[-agreed:]
            far = [place for place in found if place >= agreed and tokens[place - agreed : place] == end]
            if far:
                return far, agreed
        return found, order
