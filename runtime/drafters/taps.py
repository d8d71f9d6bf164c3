"""The ring of taps: which of its rows holds what a drafter is to read of which row of a pass.

Knows nothing of what a tap contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class TapRing:
    """`num_rows` rows, of which every lane owns two for what its drafter leaves itself; the others are handed out.

    Rows placed for a pass belong to nobody until they are claimed; the next pass takes those back that never were.
    """

    def __init__(self, num_rows: int, num_lanes: int) -> None:
        self._free = list(range(num_rows - 1, 2 * num_lanes - 1, -1))
        self._placed: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @staticmethod
    def own(lane: int, turn: int) -> int:
        """A row of the lane's own two, by turns: what is written in one pass is read in the next."""
        return 2 * lane + turn % 2

    def place(self, wanted: Sequence[bool]) -> list[int]:
        """A row for each of a pass that is `wanted`, -1 for the others. There must be as many free."""
        self._placed = [self._free.pop() if want else -1 for want in wanted]
        return self._placed.copy()

    def claim(self, rows: Iterable[int]) -> list[int]:
        """Rows of the ring that were placed for these rows of the last pass: they are the claimer's from now on."""
        claimed = []
        for row in rows:
            claimed.append(self._placed[row])
            self._placed[row] = -1
        return claimed

    def sweep(self) -> None:
        """Takes back what was placed and not claimed."""
        self.give(self._placed)
        self._placed = []

    def give(self, rows: Iterable[int]) -> None:
        """Takes rows back; -1 is none."""
        self._free += [row for row in rows if row >= 0]
