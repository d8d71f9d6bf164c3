"""Several drafters over one anchor: what they agree on, where they exclude each other, and trees of what is kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.router.blend import Blend
from tandem.tree import DraftTree


def q_of(blend: Blend, *tokens: int) -> float:
    *_, node = path = blend.path(tokens)
    assert len(path) == 1 + len(tokens)
    return blend.q[node]


def test_where_two_agree_they_are_wrong_only_together():
    copied = DraftTree.chain(0, [1, 2, 3], [0.8, 0.6, 0.3], "local")
    modelled = DraftTree.chain(0, [1, 2], [0.5, 0.25], "mtp")
    blend = Blend([copied, modelled], {})
    assert q_of(blend, 1) == pytest.approx(1 - 0.2 * 0.5)
    assert q_of(blend, 1, 2) == pytest.approx(1 - 0.4 * 0.75)
    assert q_of(blend, 1, 2, 3) == pytest.approx(0.7 * 0.3 / 0.6)  # goes on as surely as alone
    assert [blend.source(node) for node in range(1, 4)] == ["local+mtp", "local+mtp", "local"]


def test_where_two_exclude_each_other_each_loses_what_the_other_is_sure_of():
    """At most one of two independent guesses is right: 0.8 * 0.4, 0.6 * 0.2 and neither, 0.08, of what is possible."""
    blend = Blend([DraftTree.chain(0, [1], [0.8], "local"), DraftTree.chain(0, [2], [0.6], "mtp")], {})
    assert q_of(blend, 1) == pytest.approx(0.32 / 0.52) and q_of(blend, 2) == pytest.approx(0.12 / 0.52)


def test_trees_of_one_family_are_one_opinion():
    blend = Blend(
        [DraftTree.chain(0, [1, 2], [0.8, 0.6], "local"), DraftTree.chain(0, [1, 2], [0.9, 0.5], "corpus")], {}
    )
    assert len(blend) == 3 and blend.q == [1.0, 0.9, 0.6]
    assert [blend.source(node) for node in (1, 2)] == ["corpus", "local"]


def test_scores_are_weighed_by_source_and_tenth_before_they_are_joined():
    copied, modelled = DraftTree.chain(0, [1], [0.85], "local"), DraftTree.chain(0, [1], [0.55], "mtp")
    factors = {"local": [1.0] * 8 + [0.5] * 2, "mtp": [1.0] * 5 + [0.4] * 5}
    assert Blend([copied, modelled], factors).q[1] == pytest.approx(1 - (1 - 0.85 * 0.5) * (1 - 0.55 * 0.4))


def test_what_guides_add_to_a_models_tree_belongs_to_it():
    tree = DraftTree([0, 1, 2], [-1, 0, 1], [1, 0.9, 0.9], ["root", "mtp", "forced"])
    blend = Blend([tree, DraftTree.chain(0, [1, 2], [0.5, 0.5], "local")], {})
    assert q_of(blend, 1, 2) == pytest.approx(1 - 0.1 * 0.5)


@st.composite
def trees(draw: st.DrawFn, source: str) -> DraftTree:
    tree = DraftTree.root(0)
    for _ in range(draw(st.integers(0, 12))):
        parent, token = draw(st.integers(0, len(tree) - 1)), draw(st.integers(1, 4))
        if not any(tree.parents[i] == parent and tree.tokens[i] == token for i in range(1, len(tree))):
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.scores.append(tree.scores[parent] * draw(st.floats(0.0, 1.0)))
            tree.sources.append(source)
    return tree.arranged()


tenths = st.lists(st.floats(0.01, 3.0), min_size=10, max_size=10)


@given(
    st.lists(trees("local") | trees("corpus") | trees("mtp") | trees("block"), max_size=4),
    st.fixed_dictionaries({"local": tenths, "mtp": tenths}),
)
def test_q_is_a_chance_and_no_path_is_likelier_than_its_start(candidates, factors):
    blend = Blend(candidates, factors)
    for node in range(1, len(blend)):
        assert blend.parents[node] < node and 0.0 < blend.q[node] <= blend.q[blend.parents[node]]
    paths = {tuple(tree.tokens[i] for i in tree.path(node)) for tree in candidates for node in range(1, len(tree))}
    assert len(blend) == 1 + len(paths)
    # Any part with its ancestors comes back as a tree, scores and all.
    whole = blend.tree(range(1, len(blend)))
    assert whole.is_tree and sorted(whole.scores) == pytest.approx(sorted(blend.q))
    line = blend.line()
    if len(blend) > 1:
        assert blend.tree(line).is_chain
        every = [sum(blend.q[i] for i in _path(blend, node)) for node in range(1, len(blend))]
        assert sum(blend.q[node] for node in line) == pytest.approx(max(every))


def test_rounding_puts_no_token_in_front_of_its_parent():
    """0.9 and 0.03 make 0.903, and 0.9 of the 0.903 / 0.9 that copies gained by it is one bit more."""
    copied = DraftTree.chain(0, [1, 2, 3], [0.9, 0.9, 0.9], "local")
    blend = Blend([copied, DraftTree.chain(0, [1], [0.03], "mtp")], {})
    assert blend.q[1] == blend.q[2] == blend.q[3] == pytest.approx(0.903)


def _path(blend: Blend, node: int) -> list[int]:
    path = []
    while node > 0:
        path.append(node)
        node = blend.parents[node]
    return path


@given(st.integers(0, 5), st.integers(0, 5), st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_children_of_what_both_propose_share_its_chance(left, right, a, b):
    """However sure both families are, of tokens that exclude each other one is right."""
    copied = DraftTree.root(0)
    modelled = DraftTree.root(0)
    for tree, count, chance, first, source in ((copied, left, a, 1, "local"), (modelled, right, b, 4, "mtp")):
        for i in range(count):
            tree.tokens.append(first + i)
            tree.parents.append(0)
            tree.scores.append(chance / count)
            tree.sources.append(source)
    blend = Blend([copied, modelled], {})
    assert sum(blend.q[1:]) <= 1.0 + 1e-6


@pytest.mark.parametrize("score", [math.nan, math.inf, -1.0, 7.0, 0.0])
def test_a_score_that_is_no_chance_does_no_harm(score):
    blend = Blend([DraftTree.chain(0, [1, 2], [score, score], "mtp"), DraftTree.chain(0, [3], [0.5], "local")], {})
    assert all(0.0 < q <= 1.0 for q in blend.q)


def test_nothing_proposed_is_a_root():
    assert Blend([], {}).q == [1.0] and Blend([], {}).tree([]).tokens == [-1]


def test_foreseen_follows_one_family():
    blend = Blend([DraftTree.chain(0, [1, 2], [0.5, 0.4], "local"), DraftTree.chain(0, [1, 3], [0.9, 0.8], "mtp")], {})
    assert [blend.foreseen(tokens, 1) for tokens in ([1, 3, 9], [1, 2, 9], [9], [1, 3])] == [2, 1, 0, 2]
    assert blend.foreseen([1, 2, 9], 0) == 2
