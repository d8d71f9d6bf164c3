"""The page pool: which page of KV memory holds which stretch of which lane.

Knows nothing of what a page contains.
"""

from __future__ import annotations

import numpy as np


class PageTable:
    """Block tables over one pool of pages. A lane's pages are reserved whole, so none runs out midway.

    Lanes may share pages that stand before all else in each; they are free when the last lane has given them back.

    `table` is int32 [max_lanes, blocks_per_lane]: entry b of a lane is the page of its logical slots
    b*page_tokens .. (b+1)*page_tokens-1. Entries past a lane's reservation are 0 and must not be read. A change makes
    a new array, so a pass can tell by identity whether it knows the table.
    """

    def __init__(self, num_pages: int, page_tokens: int, max_lanes: int, blocks_per_lane: int) -> None:
        self.page_tokens = page_tokens
        self.table = np.zeros((max_lanes, blocks_per_lane), np.int32)
        self._num_blocks = [0] * max_lanes
        self._free = list(range(num_pages - 1, -1, -1))  # a stack: pages just freed are warm in the caches
        self._num_holders = [0] * num_pages  # lanes

    @property
    def num_free(self) -> int:
        return len(self._free)

    def reserve(self, lane: int, num_slots: int, *, like: int = 0, shared: int = 0) -> bool:
        """Make `lane` hold at least `num_slots` slots; False, with nothing changed, when the pool cannot.

        The pages of the first `shared` slots are those of lane `like`, which has them; `lane` then holds none before.
        """
        own = self._num_blocks[lane]
        assert not (own and shared), "what is shared stands before all else"
        held = own or shared // self.page_tokens
        wanted = max(held, -(-num_slots // self.page_tokens))
        if wanted > self.table.shape[1] or wanted - held > len(self._free):
            return False
        self.table = self.table.copy()
        if shared:
            self.table[lane, :held] = self.table[like, :held]
        for block in range(held, wanted):
            self.table[lane, block] = self._free.pop()
        for page in self.table[lane, own:wanted].tolist():
            self._num_holders[page] += 1
        self._num_blocks[lane] = wanted
        return True

    def release(self, lane: int) -> None:
        """Give all pages of `lane` back; those that no other lane holds are free."""
        held = self._num_blocks[lane]
        for page in self.table[lane, :held].tolist():
            self._num_holders[page] -= 1
            if not self._num_holders[page]:
                self._free.append(page)
        self.table = self.table.copy()
        self.table[lane, :held] = 0
        self._num_blocks[lane] = 0

    def pages(self, lane: int) -> list[int]:
        """Pages of `lane` in slot order."""
        return [int(page) for page in self.table[lane, : self._num_blocks[lane]]]
