"""What a group asks of a kind of model: how it drafts for lanes side by side.

Knows nothing of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tandem.runtime.drafters.reader import Seat, TapReader

R = TypeVar("R", bound=TapReader)


class Strategy(Protocol[R]):
    """Its trees are of `source`. Of what is pending of a lane the last `kept` rows, 0 or 1, are for the draft itself to
    read: all before them have been when it is asked for one, and then at most a pass of them is pending over all lanes.
    """

    @property
    def source(self) -> str: ...

    @property
    def kept(self) -> int: ...

    def drafter(self, lane: int) -> R:
        """A lane's share of it."""
        ...

    def depth(self, share: int) -> int:
        """How many tokens ahead it may guess where `share` rows a lane are to be verified; 0 for none."""
        ...

    def paying(self, seats: Sequence[Seat[R]], num_lanes: int) -> Sequence[Seat[R]]:
        """Those of `seats`, at least one, whose drafts may be worth what they cost a round of `num_lanes`."""
        ...

    def draft(self, seats: Sequence[Seat[R]], num_lanes: int) -> None:
        """Guesses for each of `seats`, at least one, in a round of `num_lanes`."""
        ...
