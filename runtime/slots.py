"""The pool of state slots: where the recurrent state of which lane lies.

Knows nothing of what a slot contains. A lane's first row begins from zeros whatever its slot holds, so none is cleared.
"""

from __future__ import annotations

from collections.abc import Sequence


class StateSlots:
    """A slot for each lane that is open, of `num_slots` in all; of a model without recurrent layers there are none.

    `table` [max_lanes] has the slot of every lane, 0 for those that hold none.
    """

    def __init__(self, num_slots: int, max_lanes: int) -> None:
        self._table = [0] * max_lanes if num_slots else []
        self._held: dict[int, int] = {}
        self._free = list(range(num_slots))

    @property
    def table(self) -> Sequence[int]:
        return self._table

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, lane: int) -> None:
        """Gives `lane`, which holds none, a slot: there must be one."""
        if self._table:
            self._table[lane] = self._held[lane] = self._free.pop()

    def release(self, lane: int) -> None:
        """Gives the slot of `lane` back."""
        if self._table:
            self._free.append(self._held.pop(lane))
            self._table[lane] = 0
