"""The ring of taps: no row is anybody's twice, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.taps import TapRing

LANES, ROWS = 3, 20
passes = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6)  # of each row: wanted, claimed


@given(passes=st.lists(st.tuples(passes, st.integers(0, 9)), max_size=12))
def test_rows_are_held_once_and_come_back(passes: list[tuple[list[tuple[bool, bool]], int]]) -> None:
    ring, held = TapRing(ROWS, LANES), list[int]()
    assert ring.num_free == ROWS - 2 * LANES
    for rows, given_back in passes:
        ring.sweep()
        assert ring.num_free == ROWS - 2 * LANES - len(held)
        wanted = [want for want, _ in rows]
        if sum(wanted) > ring.num_free:
            continue
        placed = ring.place(wanted)
        taken = [place for place in placed if place >= 0]
        assert [place >= 0 for place in placed] == wanted
        assert len({*held, *taken}) == len(held) + len(taken)
        assert all(2 * LANES <= place < ROWS for place in taken)
        kept = [row for row, (want, claim) in enumerate(rows) if want and claim]
        claimed = ring.claim(kept)
        assert claimed == [placed[row] for row in kept]
        held += claimed
        ring.give(held[:given_back])
        del held[:given_back]
    ring.sweep()
    ring.give(held)
    assert ring.num_free == ROWS - 2 * LANES


def test_a_lane_has_two_rows_of_its_own() -> None:
    own = [[TapRing.own(lane, turn) for turn in range(4)] for lane in range(LANES)]
    assert own == [[0, 1, 0, 1], [2, 3, 2, 3], [4, 5, 4, 5]]
