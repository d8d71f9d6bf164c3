"""Where the last tokens of a text stand in a text that was sorted beforehand, such as a corpus.

Knows nothing of drafts or files.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from tandem.artifacts.suffix import SuffixTable
from tandem.artifacts.suffix_sort import ORDER
from tandem.runtime.drafters.index import BEYOND
from tandem.runtime.drafters.votes import REACH

MIN_ORDER = 3
"""The shortest match that is looked for, where nobody says otherwise: of two tokens there are too many."""
MAX_PLACES = 64  # of a longer range so many are taken, evenly: neighbours go on alike


class Shelf(Protocol):
    """A text outside the request. `table` may be another one at any time, or None when there is nothing to search."""

    @property
    def table(self) -> SuffixTable | None: ...

    @property
    def source(self) -> str:
        """A label of `runtime.drafters.rates`."""
        ...


@dataclass(slots=True)
class Found:
    """What followed in the places that agree longest, each continuation once, with how often it was met."""

    agreed: int
    after: list[list[int]]
    counts: list[int]


NOTHING = Found(0, [], [])


class SuffixSearch:
    """One lane's searches of one shelf.

    The longest match grows by at most one token for each of the text's, so behind a miss only the shortest order is
    looked for: a text that is nowhere on the shelf costs one binary search a round.
    """

    def __init__(self, shelf: Shelf, min_order: int = MIN_ORDER) -> None:
        self._shelf, self._min_order = shelf, min_order
        self._table: SuffixTable | None = None
        self._most = ORDER  # no match is longer

    @property
    def source(self) -> str:
        return self._shelf.source

    def grow(self, count: int) -> None:
        """The text has `count` more tokens."""
        self._most = min(ORDER, self._most + count)

    def find(self, tokens: list[int]) -> Found:
        """Continuations behind the longest match of the text's end. Called after every change, `grow` between."""
        table = self._shelf.table
        if table is not self._table:
            self._table, self._most = table, ORDER
        if table is None:
            return NOTHING
        # What is nowhere is nowhere with more before it, so the longest match is searched for by halves.
        least, most, found = self._min_order, min(self._most, len(tokens)), (0, 0)
        order = most  # a copy that goes on is found at once
        while least <= most:
            low, high = table.find(tokens[-order:])
            if low < high:
                least, found = order + 1, (low, high)
            else:
                most = order - 1
            order = (least + most) // 2
        self._most = max(most, self._min_order - 1)
        return _read(table, _spread(table, *found, most), tokens, most) if found[1] else NOTHING


def _spread(table: SuffixTable, low: int, high: int, order: int) -> list[int]:
    """Places behind the matches in a range of the array, at most MAX_PLACES of them."""
    size = high - low
    if size <= MAX_PLACES:
        return [place + order for place in table.suffixes[low:high].tolist()]
    return [table.suffixes[low + i * size // MAX_PLACES] + order for i in range(MAX_PLACES)]


def _read(table: SuffixTable, places: list[int], tokens: list[int], order: int) -> Found:
    text = table.tokens.cast("B")
    agreed = order
    for longer in sorted(BEYOND[ORDER]) if order == ORDER else ():
        if longer > len(tokens):
            break
        end = array("i", tokens[-longer:]).tobytes()
        far = [place for place in places if place >= longer and text[4 * (place - longer) : 4 * place] == end]
        if not far:
            break
        places, agreed = far, longer
    lines = Counter([text[4 * place : 4 * (place + REACH)].tobytes() for place in places])
    return Found(agreed, [array("i", line).tolist() for line in lines], list(lines.values()))
