"""The page pool: no page in two lanes, none lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.pages import PageTable

NUM_PAGES, PAGE_TOKENS, LANES, BLOCKS = 11, 4, 3, 6

reserve = st.tuples(st.integers(0, LANES - 1), st.integers(0, BLOCKS * PAGE_TOKENS + 5))
release = st.tuples(st.integers(0, LANES - 1), st.none())


@given(st.lists(st.one_of(reserve, release), max_size=60))
def test_pages_are_never_shared_nor_lost(steps: list[tuple[int, int | None]]) -> None:
    pages = PageTable(NUM_PAGES, PAGE_TOKENS, LANES, BLOCKS)
    promised = [0] * LANES
    for lane, num_slots in steps:
        before = [pages.pages(i) for i in range(LANES)]
        if num_slots is None:
            pages.release(lane)
            promised[lane] = 0
        elif pages.reserve(lane, num_slots):
            promised[lane] = max(promised[lane], num_slots)
            assert pages.pages(lane)[: len(before[lane])] == before[lane], "what a lane holds does not move"
        else:
            assert [pages.pages(i) for i in range(LANES)] == before, "a refusal changes nothing"
            need = -(-num_slots // PAGE_TOKENS)
            assert need > BLOCKS or need - len(before[lane]) > pages.num_free
        held = [page for i in range(LANES) for page in pages.pages(i)]
        assert len(set(held)) == len(held) == NUM_PAGES - pages.num_free
        assert all(0 <= page < NUM_PAGES for page in held)
        for i in range(LANES):
            assert len(pages.pages(i)) * PAGE_TOKENS >= promised[i]
            assert pages.table[i, : len(pages.pages(i))].tolist() == pages.pages(i)
            assert not pages.table[i, len(pages.pages(i)) :].any()
