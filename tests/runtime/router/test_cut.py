"""The cut: against every subset of small trees, at prices of real shapes, and over lanes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.router.staircut import MARGIN, StairCut
from tandem.tree import DraftTree
from tests.runtime.router.drafts import cut, line
from tests.runtime.router.replay import cpu_table, flat_table


def chosen(table: dict, *lanes: list[DraftTree], max_rows: int = 32) -> list[DraftTree]:
    return cut(StairCut(PriceModel(table)), list(lanes), [100] * len(lanes), max_rows)


def test_a_long_copy_takes_many_rows_even_where_rows_are_dear():
    (tree,) = chosen(cpu_table(), [line([0.97**d for d in range(1, 32)])])
    assert len(tree) >= 16 and tree.is_chain


def test_weak_guesses_stay_plain_or_nearly():
    weak = DraftTree([0, 1, 2, 3, 4], [-1, 0, 1, 0, 0], [1, 0.3, 0.1, 0.2, 0.1], ["root", *["local"] * 4]).arranged()
    (tree,) = chosen(cpu_table(), [weak])
    assert tree.num_drafted <= 3
    (tree,) = chosen(cpu_table(), [line([0.08, 0.01])])
    assert tree.num_drafted == 0


def test_where_rows_are_free_everything_goes():
    branches = DraftTree([0, 1, 2, 3], [-1, 0, 1, 0], [1, 0.5, 0.2, 0.1], ["root", *["local"] * 3])
    (tree,) = chosen(flat_table(), [branches])
    assert sorted(tree.scores) == sorted(branches.scores)


def test_without_candidates_or_rows_or_gain_the_round_is_plain():
    assert [t.num_drafted for t in chosen(cpu_table(), [], [])] == [0, 0]
    assert chosen(flat_table(), [line([0.9])], max_rows=1)[0].num_drafted == 0
    dear = {"1024": {"extend": {"1": 10.0}, "verify-chain": {"2": 100.0}, "verify-tree": {"2": 100.0}}}
    (tree,) = chosen(dear, [line([1.0] * 8, anchor=4)])
    assert tree.tokens == [4]


def test_the_plain_step_has_its_own_price():
    """A verify of one more row costs twice the step here: 1.9 tokens in 2 ms lose against 1 in 1 ms."""
    table = {"1024": {"extend": {"1": 1.0}, "verify-chain": {"2": 2.0, "3": 2.0}, "verify-tree": {"2": 2.0}}}
    assert chosen(table, [line([0.9])])[0].num_drafted == 0
    assert chosen(table, [line([0.9, 0.8])])[0].num_drafted == 2


def test_a_chain_is_preferred_where_trees_cost_a_commit():
    table = flat_table(10.0)
    table["1024"]["commit"] = {"1": 10.0}
    tree = DraftTree([0, 1, 2, 3], [-1, 0, 1, 0], [1, 0.9, 0.8, 0.1], ["root", *["local"] * 3])
    (picked,) = chosen(table, [tree, line([0.9, 0.8])])
    assert picked.is_chain and picked.num_drafted == 2


def test_a_line_costs_a_commit_where_a_state_is_moved_on():
    """Three tokens in 1 + 1.5 ms beat one in 1 ms, in 1 + 2.5 they do not; without a state nothing has to move."""
    for commit, recurrent, drafted in ((1.5, True, 2), (2.5, True, 0), (2.5, False, 2)):
        table = flat_table(1.0)
        table["1024"]["commit"] = {"1": commit, "32": commit}
        router = StairCut(PriceModel(table), recurrent=recurrent)
        assert cut(router, [[line([1.0, 1.0])]], [100])[0].num_drafted == drafted


@st.composite
def small_trees(draw: st.DrawFn) -> DraftTree:
    tree = DraftTree.root(0)
    for token in range(1, draw(st.integers(2, 9))):
        parent = draw(st.integers(0, len(tree) - 1))
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.scores.append(tree.scores[parent] * draw(st.floats(0.05, 1.0)))
        tree.sources.append("local")
    return tree.arranged()


steps = st.lists(st.floats(0.0, 3.0), min_size=10, max_size=10)


def staircase(rises: list[float]) -> dict:
    ms, rows = 1.0, {}
    for count, rise in enumerate(rises, 1):
        rows[str(count)] = ms = ms + rise
    return {"1024": dict.fromkeys(("extend", "verify-chain", "verify-tree"), rows)}


def best_value(forest: list[DraftTree], prices: PriceModel) -> float:
    """Tokens a millisecond of the best ancestor-closed choice, by trying all."""
    nodes = [(i, node) for i, tree in enumerate(forest) for node in range(1, len(tree))]
    best = 0.0
    for count in range(len(nodes) + 1):
        for pick in combinations(nodes, count):
            if all(forest[i].parents[node] == 0 or (i, forest[i].parents[node]) in pick for i, node in pick):
                tokens = len(forest) + sum(forest[i].scores[node] for i, node in pick)
                best = max(best, tokens / prices.ms(0, Kind.VERIFY_TREE, len(forest) + count))
    return best


@given(st.lists(small_trees(), min_size=1, max_size=1) | st.tuples(small_trees(), small_trees()), steps)
def test_no_subset_of_any_lanes_beats_the_cut(forest, rises):
    forest = [tree.truncate(9 // len(forest)) for tree in forest]
    prices = PriceModel(staircase(rises))
    trees = cut(StairCut(prices), [[tree] for tree in forest], [0] * len(forest))
    value = sum(map(len, trees)) and sum(sum(tree.scores) for tree in trees)
    value /= prices.ms(0, Kind.VERIFY_TREE, sum(map(len, trees)))
    best = best_value(forest, prices)
    plain = len(forest) / prices.ms(0, Kind.EXTEND, len(forest))
    assert value == pytest.approx(best) or (value == pytest.approx(plain) and best <= MARGIN * plain + 1e-9)


def test_lanes_share_the_rows_by_likelihood():
    sure, doubtful = line([0.99**d for d in range(1, 32)]), line([0.4**d for d in range(1, 32)])
    first, second = chosen(cpu_table(), [doubtful], [sure])
    assert first.num_drafted <= 2 and second.num_drafted >= 12
    assert sum(map(len, chosen(flat_table(), [sure], [sure], [doubtful], []))) == 32
