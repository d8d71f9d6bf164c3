"""The page pool: no page is lost, and none is in two lanes unless they share it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.runtime.pages import PageTable

NUM_PAGES, PAGE_TOKENS, LANES, BLOCKS = 11, 4, 4, 6

lanes = st.integers(0, LANES - 1)
reserve = st.tuples(st.just("reserve"), lanes, st.integers(0, BLOCKS * PAGE_TOKENS + 5), st.just(0), st.just(0))
share = st.tuples(st.just("share"), lanes, st.integers(0, BLOCKS * PAGE_TOKENS + 5), lanes, st.integers(1, BLOCKS))
release = st.tuples(st.just("release"), lanes, st.just(0), st.just(0), st.just(0))


@settings(max_examples=300)
@given(st.lists(st.one_of(reserve, share, share, release), max_size=60))
def test_pages_are_never_lost_and_shared_only_on_purpose(steps: list[tuple[str, int, int, int, int]]) -> None:
    pages = PageTable(NUM_PAGES, PAGE_TOKENS, LANES, BLOCKS)
    held: list[list[int]] = [[] for _ in range(LANES)]  # what each should hold, told by the table alone
    for what, lane, num_slots, like, blocks in steps:
        need, free = -(-num_slots // PAGE_TOKENS), pages.num_free
        if what == "release":
            pages.release(lane)
            held[lane] = []
        else:
            given = held[lane]
            if what == "share":
                if held[lane] or like == lane or len(held[like]) < blocks:
                    continue
                given = held[like][:blocks]
            fits = need <= BLOCKS and need - len(given) <= free
            assert (
                pages.reserve(lane, num_slots, like=like, shared=len(given) * PAGE_TOKENS * (what == "share")) == fits
            )
            if fits:
                found = pages.pages(lane)
                assert found[: len(given)] == given, "what a lane holds does not move, and what it shares is the same"
                assert len(found) == max(need, len(given))
                fresh = found[len(given) :]
                assert not {page for other in held for page in other} & set(fresh), "what is new is nobody's"
                held[lane] = found
        assert [pages.pages(i) for i in range(LANES)] == held, "nobody else's change, nor anybody's at a refusal"
        taken = {page for one in held for page in one}
        assert pages.num_free == NUM_PAGES - len(taken) and all(0 <= page < NUM_PAGES for page in taken)
        for i in range(LANES):
            assert len(set(held[i])) == len(held[i])
            assert pages.table[i, : len(held[i])].tolist() == held[i] and not pages.table[i, len(held[i]) :].any()
