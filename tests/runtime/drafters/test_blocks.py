"""Whose blocks are drafted: those that may raise what a round brings a millisecond, by hand-worked prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tandem.keys import Kind
from tandem.runtime.drafters.block import BlockDrafter
from tandem.runtime.drafters.blocks import Blocks
from tandem.runtime.drafters.reader import Seat
from tests.fake_blocks import block


@dataclass
class Rising:
    """A step takes 10 ms, a verify 10 and 1 a row, a draft `draft` and `draft_row` a row, reading `sync` a row."""

    draft: float = 0.0
    draft_row: float = 0.0
    sync: float = 0.0

    def ms(self, context: int, kind: Kind, rows: int) -> float:
        assert context == 3
        whole = {Kind.EXTEND: 10.0, Kind.VERIFY_CHAIN: 10.0, Kind.DRAFT: self.draft, Kind.SYNC: 0.0}
        each = {Kind.EXTEND: 0.0, Kind.VERIFY_CHAIN: 1.0, Kind.DRAFT: self.draft_row, Kind.SYNC: self.sync}
        return whole[kind] + rows * each[kind]

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None: ...


@dataclass
class Passes:
    draft_lanes: int = 4


def blocks(prices: Rising, *, draft_lanes: int = 4, max_rows: int = 32) -> Blocks:
    """Blocks of 4 slots behind an anchor."""
    passes: Any = Passes(draft_lanes)
    return Blocks(passes, block(5), max_rows, prices, lambda rows: [], lambda drafter: None)


def seats(strategy: Blocks, *chances: float) -> list[Seat[BlockDrafter]]:
    """A lane for each chance of a slot."""
    made = []
    for lane, chance in enumerate(chances):
        drafter = strategy.drafter(lane)
        drafter.begin((1, 2, 3))
        drafter.reach._hits, drafter.reach._trials = chance * 1e9, 1e9
        made.append(Seat(drafter, 4))
    return made


def paying(strategy: Blocks, *chances: float, num_lanes: int = 0) -> list[int]:
    chosen = strategy.paying(seats(strategy, *chances), num_lanes or len(chances))
    return sorted(seat.drafter.lane for seat in chosen)


# Slots that come true with a chance of 0.8: 0.8 + 0.64 + 0.512 + 0.4096 = 2.3616 in a row of four, of 0.5: 0.9375.


@pytest.mark.parametrize(
    ("prices", "pays"),
    [
        # 3.3616 tokens in 13 ms and the draft; the plain step's 0.1 a ms are 33.6 ms.
        (Rising(draft=20.5), True),
        (Rising(draft=20.7), False),
        (Rising(draft_row=4.1), True),
        (Rising(draft_row=4.2), False),
        # The next draft has the anchor and two rows more to read.
        (Rising(draft=17.5, sync=1.0), True),
        (Rising(draft=17.7, sync=1.0), False),
    ],
)
def test_a_block_has_to_beat_the_plain_step(prices: Rising, pays: bool) -> None:
    assert paying(blocks(prices), 0.8) == ([0] if pays else [])


@pytest.mark.parametrize(("draft", "pays"), [(2.0, True), (2.1, False)])
def test_a_draft_that_is_hardly_ever_right_takes_a_row_all_the_same(draft: float, pays: bool) -> None:
    """Of 0.29 a slot 0.4056 in a row: 1.4056 tokens in 12 ms and the draft."""
    assert paying(blocks(Rising(draft=draft)), 0.29) == ([0] if pays else [])


@pytest.mark.parametrize(
    ("other", "chosen"),
    # One block: 4.36 tokens in 2.5 + 14 ms, 0.264 a ms. Two: 5.3 in 5 + 15 ms, or 4.61 (0.25) in 5 + 14 ms.
    [(0.5, [0, 1]), (0.2, [1])],
)
def test_lanes_draft_whose_blocks_raise_what_the_round_brings(other: float, chosen: list[int]) -> None:
    assert paying(blocks(Rising(draft_row=0.5)), other, 0.8) == chosen


def test_another_pass_is_paid_for() -> None:
    """The second block alone costs 3 ms more: as above, and 5.3 tokens in 3 + 3 + 15 ms are fewer a ms."""
    prices = Rising(draft=3.0)
    assert paying(blocks(prices), 0.5, 0.8) == [0, 1]
    assert paying(blocks(prices, draft_lanes=1), 0.5, 0.8) == [1]


def test_no_more_come_true_than_there_are_rows_for() -> None:
    """Of 4 rows two lanes leave 2 to draft, which one block fills."""
    assert paying(blocks(Rising(draft_row=0.2)), 0.8, 0.8) == [0, 1]
    assert len(paying(blocks(Rising(draft_row=0.2), max_rows=4), 0.8, 0.8)) == 1


def test_lanes_that_do_not_draft_are_part_of_the_round() -> None:
    # 3 + 2.36 tokens in 15 ms and the draft against 3 in 10 ms.
    assert paying(blocks(Rising(draft=2.8)), 0.8, num_lanes=3) == [0]
    assert paying(blocks(Rising(draft=2.9)), 0.8, num_lanes=3) == []


def test_blocks_reach_to_their_end_where_anything_is_to_be_verified() -> None:
    strategy = blocks(Rising())
    assert [strategy.depth(share) for share in (0, 1, 31)] == [0, 4, 4]
