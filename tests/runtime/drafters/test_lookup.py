"""Lookup drafts: the index against a plain search, scores worked by hand, and what a lane learns."""

from __future__ import annotations

import cProfile
import pstats
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.index import MAX_PLACES, ContextIndex
from tandem.runtime.drafters.lookup import LookupDrafter, lookup_drafters
from tandem.runtime.drafters.rates import AGREED, MAX_TRIALS, PRIOR, CopyRates
from tandem.runtime.drafters.votes import LEAST, MAX_CHILDREN, MAX_DEPTH, vote_tree
from tandem.tree import DraftTree


def searched(tokens: list[int], min_order: int) -> tuple[list[int], int]:
    """What `places` should say, by looking at every place."""

    def after(n: int) -> list[int]:
        return [p for p in range(n, len(tokens)) if tokens[p - n : p] == tokens[len(tokens) - n :]][::-1]

    order = next((n for n in (8, 4, 2) if after(n)), None)
    if order is None:
        return [], 0
    newest = after(order)[:MAX_PLACES]
    for agreed in (128, 64, 32, 16, 8, 7, 6, 5, 4, 3, 2):
        far = [p for p in newest if p in after(agreed)]
        if far and (agreed <= 2 * order or order == 8) and agreed >= order:
            return (far, agreed) if agreed >= min_order else ([], 0)
    raise AssertionError(order)


@given(st.lists(st.integers(0, 2), max_size=90), st.integers(0, 90), st.integers(2, 8))
def test_places_are_those_of_a_plain_search(tokens, prompt, min_order):
    index = ContextIndex()
    index.begin(tokens[:prompt])
    for token in tokens[prompt:]:
        index.append(token)
    assert index.places(min_order) == searched(tokens, min_order)


def test_an_index_holds_a_bounded_window():
    index = ContextIndex(window=64)
    index.begin(range(1000))
    assert index.tokens == list(range(936, 1000))
    for token in range(5000):
        index.append(token % 7)
        assert len(index.tokens) <= 2 * 64
    assert index.places(2) == searched(index.tokens, 2)


def test_one_witness_is_a_line_whose_score_follows_the_agreement():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3, 4, 5, 6, 9, 1, 2])
    (line,) = drafter.propose(4)
    assert line.tokens == [2, 3, 4, 5, 6] and line.is_chain
    assert line.sources == ["root", *["local"] * 4]
    # Two tokens agree, then three, four, five.
    assert line.scores == pytest.approx([1, 0.5, 0.5 * 0.58, 0.5 * 0.58 * 0.64, 0.5 * 0.58 * 0.64 * 0.69])


def test_votes_share_a_node_and_the_longest_order_alone_speaks():
    drafter = LookupDrafter()
    drafter.begin([8, 1, 2, 3, 8, 1, 2, 4, 5, 8, 1, 2, 4, 6, 0, 1, 2, 9, 8, 1, 2])
    tree, line = drafter.propose(31)
    first = {tree.tokens[i]: tree.scores[i] for i in tree.children(0)}
    rate = CopyRates().rate(3)
    assert first == pytest.approx({4: rate * 2 / 3, 3: rate / 3})  # 9 followed two equal tokens only
    four = tree.follow(0, 4)
    assert tree.parents[1] == 0 and four == 1  # the likelier child comes first
    assert {tree.tokens[i] for i in tree.children(1)} == {5, 6}
    assert line.is_chain and line.tokens[1] == 4
    assert 1 < line.num_drafted < 31 and min(tree.scores + line.scores) >= LEAST  # what is unlikely is left out


@given(st.lists(st.integers(0, 4), min_size=1, max_size=120), st.integers(1, 31))
def test_candidates_keep_the_rules_of_trees(tokens, max_nodes):
    drafter = LookupDrafter()
    drafter.begin(tokens)
    for tree in drafter.propose(max_nodes):
        assert 1 <= tree.num_drafted <= max_nodes and tree.tokens[0] == tokens[-1]
        assert all(tree.scores[node] <= tree.scores[parent] for node, parent in enumerate(tree.parents) if node)
        for node in range(len(tree)):
            children = tree.children(node)
            assert len({tree.tokens[child] for child in children}) == len(children) <= max(MAX_CHILDREN, 1)
            assert sum(tree.scores[child] for child in children) <= tree.scores[node] + 1e-9
        assert tree.is_chain or max(tree.depths()) <= MAX_DEPTH


def test_a_tree_keeps_the_likeliest_nodes():
    generator = random.Random(3)
    tokens = [generator.randrange(3) for _ in range(400)]
    index = ContextIndex()
    index.begin(tokens)
    places, agreed = index.places(2)
    whole = vote_tree(tokens, places, agreed, CopyRates(), 10_000)
    cut = vote_tree(tokens, places, agreed, CopyRates(), 12)
    assert sorted(cut.scores, reverse=True) == pytest.approx(sorted(whole.scores, reverse=True)[:13])


def test_a_text_that_repeats_itself_is_drafted_on_to_any_length():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3] * 12)
    line = drafter.propose(31)[-1]
    assert line.tokens[1:] == ([1, 2, 3] * 11)[:31]


@pytest.mark.parametrize("prompt", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_nothing_to_copy_is_declined(prompt):
    drafter = LookupDrafter()
    drafter.begin(prompt)
    assert drafter.propose(31) == []
    drafter.begin([5, 6, 5, 6])
    assert drafter.propose(0) == []


def test_a_shorter_match_than_min_order_is_silent():
    drafter = LookupDrafter(min_order=3)
    drafter.begin([1, 2, 3, 4, 9, 1, 2])
    assert drafter.propose(31) == []
    drafter.observe([3])
    assert drafter.propose(31)[0].tokens[1] == 4
    with pytest.raises(ValueError, match="min_order"):
        LookupDrafter(min_order=9)


def test_begin_forgets_the_text_before():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3, 4, 9, 1, 2])
    drafter.begin([1, 2])
    assert drafter.propose(31) == []


def test_rates_learn_from_every_proposal_and_lanes_share_them():
    make = lookup_drafters()
    drafter, other = make(), make()
    drafter.begin([1, 2, 3, 4, 5, 6, 9, 1, 2])
    other.begin([1, 2, 3, 9, 1, 2])
    before = other.propose(1)[0].scores[1]
    drafter.propose(31)
    drafter.observe([3, 4, 7])  # two steps went on, the third did not
    assert other.propose(1)[0].scores[1] == pytest.approx((before * 8 + 1) / 9)
    rates = CopyRates()
    assert drafter._rates.rate(3) == pytest.approx((8 * rates.rate(3) + 1) / 9)
    assert drafter._rates.rate(4) == pytest.approx(8 * rates.rate(4) / 9)
    assert drafter._rates.rate(5) == rates.rate(5)


def test_a_round_without_a_proposal_counts_nothing():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3, 9, 1, 2])
    drafter.observe([3])
    assert [drafter._rates.rate(agreed) for agreed in AGREED] == pytest.approx(PRIOR)


def test_old_counts_fade():
    rates = CopyRates()
    for _ in range(int(2 * MAX_TRIALS)):
        rates.count(8, True)
    for _ in range(int(MAX_TRIALS)):
        rates.count(8, False)
    assert rates.rate(8) < 0.45


def test_a_proposal_costs_a_bounded_number_of_calls():
    """A cost that no other load on the machine moves: function calls, of a text with many votes and many branches."""
    generator = random.Random(1)
    drafter = LookupDrafter()
    words = [generator.randrange(60) for _ in range(480)]
    drafter.begin([token for word in words for token in (word, 99)])
    profile = cProfile.Profile()
    profile.enable()
    trees: list[DraftTree] = drafter.propose(31)
    profile.disable()
    assert len(trees) == 2
    assert pstats.Stats(profile).total_calls < 2500
