"""Rows dealt evenly, and so that those who need little are done soon."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.shares import even_shares, quick_shares

needs_ = st.lists(st.integers(0, 50), min_size=1, max_size=8)


@given(needs_, st.integers(0, 200))
def test_shares_are_even(needs: list[int], total: int) -> None:
    shares = even_shares(needs, total)
    assert sum(shares) == min(total, sum(needs))
    assert all(0 <= share <= need for share, need in zip(shares, needs, strict=True))
    lacking = [share for share, need in zip(shares, needs, strict=True) if share < need]
    # Whoever lacks something has as much as anybody, but for the rest of a division.
    assert all(share >= max(shares) - 1 for share in lacking)


def test_earlier_ones_get_the_rest_of_a_division() -> None:
    assert even_shares([9, 9, 9], 8) == [3, 3, 2]
    assert even_shares([9, 9, 9], 2) == [1, 1, 0]


@given(needs_, st.integers(0, 200))
def test_nobody_stands_still_and_the_modest_are_done_first(needs: list[int], total: int) -> None:
    shares = quick_shares(needs, total)
    assert sum(shares) == min(total, sum(needs))
    assert all(0 <= share <= need for share, need in zip(shares, needs, strict=True))
    even = total // 4 // len(needs)
    assert all(share >= min(need, even) for share, need in zip(shares, needs, strict=True))
    # Who lacks something leaves those who need more their part of what is dealt evenly.
    evenly = even_shares(needs, -(-total // 4))
    lacking = [need for share, need in zip(shares, needs, strict=True) if share < need]
    behind = [i for i, need in enumerate(needs) if need > min(lacking, default=50)]
    assert [shares[i] for i in behind] == [evenly[i] for i in behind]


def test_a_short_prompt_is_in_at_once() -> None:
    assert quick_shares([400, 31], 40) == [9, 31]
    assert quick_shares([400, 300, 20], 48) == [4, 24, 20]
