"""Lookup drafts: the index against a plain search, scores worked by hand, and what a lane learns."""

from __future__ import annotations

import cProfile
import json
import pstats
import random
from itertools import accumulate
from operator import mul
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.index import MAX_PLACES, ContextIndex
from tandem.runtime.drafters.lookup import LookupDrafter, lookup_drafters
from tandem.runtime.drafters.rates import (
    AGREED,
    BOTH,
    CORPUS,
    LOCAL,
    MAX_TRIALS,
    PRIOR_FILE,
    RUNS,
    SOURCES,
    STORE,
    CopyRates,
    read_prior,
)
from tandem.runtime.drafters.votes import LEAST, MAX_CHILDREN, MAX_DEPTH, Witnesses, vote_tree
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


@given(
    st.lists(st.integers(0, 2), max_size=90),
    st.integers(0, 90),
    st.integers(2, 8),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_places_are_those_of_a_plain_search(tokens, prompt, min_order, strides):
    """However many tokens come between two searches."""
    index = ContextIndex()
    index.begin(tokens[:prompt])
    for stride in strides:
        index.extend(tokens[prompt : prompt + stride])
        prompt += stride
        assert index.places(min_order) == searched(tokens[:prompt], min_order)


def test_an_index_holds_a_bounded_window():
    index = ContextIndex(window=64)
    index.begin(range(1000))
    assert index.tokens == list(range(936, 1000))
    for token in range(5000):
        index.extend([token % 7])
        index.places(2)
        assert len(index.tokens) <= 2 * 64
    index.extend([token % 5 for token in range(500)])  # of a rest
    assert index.places(2) == searched(index.tokens, 2)


def test_one_witness_is_a_line_whose_score_follows_the_agreement():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3, 4, 5, 6, 9, 1, 2])
    (line,) = drafter.propose(4)
    assert line.tokens == [2, 3, 4, 5, 6] and line.is_chain
    assert line.sources == ["root", *["local"] * 4]
    # Two tokens agree, then three, four, five; none, one, two, three of them were drafted.
    rates = [CopyRates().rate(LOCAL, 2 + i, i) for i in range(4)]
    assert line.scores == pytest.approx([1, *accumulate(rates, mul)])


def test_votes_share_a_node_and_the_longest_order_alone_speaks():
    drafter = LookupDrafter()
    drafter.begin([8, 1, 2, 3, 8, 1, 2, 4, 5, 8, 1, 2, 4, 6, 0, 1, 2, 9, 8, 1, 2])
    tree, line = drafter.propose(31)
    first = {tree.tokens[i]: tree.scores[i] for i in tree.children(0)}
    rate = CopyRates().rate(LOCAL, 3, 0)
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
    witnesses = Witnesses(agreed)
    witnesses.add([tokens[place:] for place in places], [1.0] * len(places), LOCAL)
    whole = vote_tree(tokens[-1], witnesses, CopyRates(), 0, 10_000)
    cut = vote_tree(tokens[-1], witnesses, CopyRates(), 0, 12)
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
    a, b = read_prior()[LOCAL, 0, 0]
    assert other.propose(1)[0].scores[1] == pytest.approx((a + 1) / (a + b + 1)) and before == pytest.approx(
        a / (a + b)
    )
    a, b = read_prior()[LOCAL, 1, 1]  # three agree, one of them was drafted
    assert drafter._rates.rate(LOCAL, 3, 1) == pytest.approx((a + 1) / (a + b + 1))
    a, b = read_prior()[LOCAL, 2, 1]
    assert drafter._rates.rate(LOCAL, 4, 2) == pytest.approx(a / (a + b + 1))
    assert drafter._rates.rate(LOCAL, 5, 3) == CopyRates().rate(LOCAL, 5, 3)


def test_a_round_without_a_proposal_counts_nothing():
    drafter = LookupDrafter()
    drafter.begin([1, 2, 3, 9, 1, 2])
    drafter.observe([3])
    fresh = CopyRates()
    for source in SOURCES:
        assert drafter._rates.ladder(source, 2, 0, 200) == fresh.ladder(source, 2, 0, 200)


def test_the_run_grows_while_the_text_follows_the_line():
    drafter = LookupDrafter()
    drafter.begin([*range(1, 40), 50, 1, 2])
    score = drafter.propose(1)[0].scores[1]
    assert score == pytest.approx(CopyRates().rate(LOCAL, 2, 0))
    drafter.observe([3, 4, 5])
    assert drafter.propose(1)[0].scores[1] == pytest.approx(CopyRates().rate(LOCAL, 5, 3))
    drafter.observe([6, 7])  # the line was of one token, which is followed, and so is what came behind it
    assert drafter._run == 5
    drafter.propose(31)
    drafter.observe([8, 60])
    assert drafter._run == 0
    drafter.observe([61])
    assert drafter._run == 0


def test_rates_stand_in_bins():
    rates = CopyRates()
    assert rates.rate(LOCAL, 9, 2) == rates.rate(LOCAL, 15, 7) and rates.rate(LOCAL, 500, 99) == rates.rate(
        LOCAL, 128, 24
    )
    for source in SOURCES:
        for agreed, run in ((2, 0), (5, 6), (100, 20)):
            ladder = rates.ladder(source, agreed, run, 40)
            assert ladder == [rates.rate(source, agreed + i, run + i) for i in range(40)]
            assert all(0 < rate < 1 for rate in ladder)


def test_old_counts_fade():
    rates = CopyRates()
    for _ in range(int(2 * MAX_TRIALS)):
        rates.count(LOCAL, 8, 0, True)
    for _ in range(int(MAX_TRIALS)):
        rates.count(LOCAL, 8, 0, False)
    assert rates.rate(LOCAL, 8, 0) < 0.45


def test_a_prior_weighs_little_and_takes_wider_bins_where_it_has_few_trials(tmp_path: Path):
    file = tmp_path / "rates.json"
    trials = {LOCAL: {"8|0": [300, 99], "8|8": [10, 5], "2|0": [3, 4]}, CORPUS: {"8|1": [18, 1]}}
    file.write_text(json.dumps({"trials": trials}))
    prior = read_prior(file)
    eight = AGREED.index(8)
    assert prior[LOCAL, eight, 0] == pytest.approx((300.5 * 50 / 400, 99.5 * 50 / 400))
    wider = (310.5 * 50 / 415, 104.5 * 50 / 415)  # all runs together
    assert prior[LOCAL, eight, RUNS.index(8)] == prior[LOCAL, eight, RUNS.index(24)] == pytest.approx(wider)
    every = (328.5 * 50 / 434, 105.5 * 50 / 434)  # all sources as well: 19 trials are too few
    assert prior[CORPUS, eight, 1] == prior[STORE, eight, 0] == prior[BOTH, eight, 3] == pytest.approx(every)
    assert prior[LOCAL, 0, 0] == (5.5, 3.5)  # nothing is known


def test_the_prior_that_is_shipped_says_where_it_is_from():
    content = json.loads(PRIOR_FILE.read_text())
    assert content["counted"]["by"] == "bench/copy_rates.py" and content["counted"]["tokens"] > 100_000
    assert set(content["trials"]) <= set(SOURCES)
    rates = CopyRates()
    for source in SOURCES:  # a longer match is a better one
        assert rates.rate(source, 2, 0) < rates.rate(source, 8, 0) < rates.rate(source, 64, 8)


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
