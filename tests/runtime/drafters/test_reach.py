"""How far walks come true: what is expected, what is learned, what is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.reach import FIRST, PRIOR_SLOTS, Reach


@given(st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=60), st.integers(1, 31))
def test_what_is_expected_is_the_sum_over_slots(rounds: list[tuple[int, bool]], slots: int) -> None:
    reach = Reach(Reach(keep=0.99))
    for hits, missed in rounds:
        reach.learn(hits, hits + missed)
    assert 0.0 < reach.chance <= 1.0
    assert reach.expected(slots) == pytest.approx(sum(reach.chance**slot for slot in range(1, slots + 1)))


def test_a_slot_counts_beside_what_was_known_before() -> None:
    reach = Reach()
    assert reach.chance == FIRST
    reach.learn(1, 2)
    assert reach.chance == pytest.approx((FIRST * PRIOR_SLOTS + 1) / (PRIOR_SLOTS + 2))


def test_all_that_comes_true_is_expected_to() -> None:
    reach = Reach()
    reach._hits = reach._trials = 1e18
    assert reach.chance == 1.0 and reach.expected(7) == 7.0


def test_a_text_starts_from_what_others_taught_and_goes_its_own_way() -> None:
    usual = Reach(keep=0.99)
    first = Reach(usual)
    for _ in range(40):
        first.learn(0, 1)
    second = Reach(usual)
    assert first.chance < second.chance == usual.chance < 0.5
    for _ in range(40):
        second.learn(7, 7)
    assert first.chance < usual.chance < second.chance


def test_what_was_learned_fades_and_less_where_it_was_not_asked() -> None:
    asked, left = Reach(), Reach()
    for reach in (asked, left):
        for _ in range(40):
            reach.learn(0, 1)
    doubted = asked.chance
    for _ in range(5):
        asked.learn(7, 7)
    for _ in range(5):
        left.age()
    assert doubted < left.chance < asked.chance
    for _ in range(2000):
        left.age()
    assert left.chance == pytest.approx(FIRST)
