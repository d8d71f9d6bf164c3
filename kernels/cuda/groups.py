"""How the positions of a context are grouped for attention: absolute borders, the same for every pass and kernel.

A group's keys are summed by themselves and the groups' results folded in order. Small groups first, so that a step in
a short context has parallel work; large ones behind, so that a long context leaves few partial results.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(64)
"""Positions of one tile, which is also one page of the cache."""

SMALL, MIDDLE, LARGE = tl.constexpr(128), tl.constexpr(512), tl.constexpr(1024)
SMALL_END, MIDDLE_END = tl.constexpr(2048), tl.constexpr(8192)
NUM_SMALL = tl.constexpr(SMALL_END.value // SMALL.value)
NUM_BELOW_LARGE = tl.constexpr(NUM_SMALL.value + (MIDDLE_END.value - SMALL_END.value) // MIDDLE.value)


def num_groups(context: int) -> int:
    """Groups that positions 0..context-1 fall into."""
    if context <= SMALL_END.value:
        return -(-context // SMALL.value)
    if context <= MIDDLE_END.value:
        return NUM_SMALL.value - (SMALL_END.value - context) // MIDDLE.value
    return NUM_BELOW_LARGE.value - (MIDDLE_END.value - context) // LARGE.value


@triton.jit
def group_of(position):
    """The group of a position."""
    small = position // SMALL
    middle = NUM_SMALL + (position - SMALL_END) // MIDDLE
    large = NUM_BELOW_LARGE + (position - MIDDLE_END) // LARGE
    return tl.where(position < SMALL_END, small, tl.where(position < MIDDLE_END, middle, large))


@triton.jit
def first_position(group):
    """The first position of a group, a multiple of TILE."""
    middle = SMALL_END + (group - NUM_SMALL) * MIDDLE
    large = MIDDLE_END + (group - NUM_BELOW_LARGE) * LARGE
    return tl.where(group < NUM_SMALL, group * SMALL, tl.where(group < NUM_BELOW_LARGE, middle, large))
