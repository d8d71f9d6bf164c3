"""Which row of a pass comes before another: the rule that convolution and recurrence share.

Rows of a lane stand together and a parent before its children. `parent` [R] int32 is the row of the pass that a row
follows, or -1 where it follows the lane's committed prefix, which lies in the lane's state slot. A row that follows
nothing, at position 0, begins from zeros, whatever its slot holds.
"""

from __future__ import annotations

from torch import Tensor


def row_before(row: int, parent: Tensor, tree: bool) -> int:
    """The row that `row` follows, or -1. Without `tree` only the sign of `parent` counts: each follows the last."""
    above = int(parent[row])
    return above if tree or above < 0 else row - 1


def carried(slots: Tensor, slot: int, position: int) -> Tensor:
    """What a row at `position` finds in its lane's slot of `slots` [S, ...]: zeros where nothing comes before it."""
    return slots[slot] if position else slots.new_zeros(slots.shape[1:])
