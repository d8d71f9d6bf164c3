"""The router against its definitions, written down plainly: the same chances, the same choice, the same lessons."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.prices import PriceModel
from tandem.runtime.router.blend import Blend
from tandem.runtime.router.calibration import fates
from tandem.runtime.router.cut import Cutter
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.runtime.router import reference
from tests.runtime.router.reference import Path

tenths = st.lists(st.floats(0.01, 3.0), min_size=10, max_size=10)
factors = st.dictionaries(st.sampled_from(["local", "corpus", "mtp", "block"]), tenths, max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Of up to 14 nodes, lines among them, whose scores need not fall."""
    source, straight = draw(st.sampled_from(["local", "corpus", "mtp", "block"])), draw(st.booleans())
    tree, known = DraftTree.root(0), set()
    for _ in range(draw(st.integers(0, 14))):
        parent = len(tree) - 1 if straight else draw(st.integers(0, len(tree) - 1))
        token = draw(st.integers(1, 3))
        if (parent, token) not in known:
            known.add((parent, token))
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.scores.append(draw(st.floats(0.0, 1.0) | st.sampled_from([math.nan, math.inf, -1.0])))
            tree.sources.append(source)
    return tree if straight else tree.arranged()


candidates = st.lists(trees(), max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Prices that rise with rows, by steps of their own for each kind."""
    rises = st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.4, 1.5]), min_size=32, max_size=32)
    table: dict[str, dict[str, float]] = {}
    for kind in ("extend", "verify-chain", "verify-tree", "commit"):
        ms = draw(st.floats(0.1, 3.0))
        table[kind] = {}
        for rows, rise in enumerate(draw(rises), 1):
            table[kind][str(rows)] = ms = ms + rise
    return {"1024": table}


def paths_of(blend: Blend) -> list[Path]:
    paths: list[Path] = [()]
    for parent, token in zip(blend.parents[1:], blend.tokens[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths


@given(candidates, factors)
def test_chances_are_the_defined_ones(forest, known):
    blend = Blend(forest, known)
    assert dict(zip(paths_of(blend), blend.q, strict=True)) == reference.chances(forest, known)
    for family, said in enumerate(reference.said(forest)):
        proposed = zip(paths_of(blend), blend.scores[family], blend.sources[family], strict=True)
        assert {path: (score, source) for path, score, source in proposed if path and score} == said


@given(st.lists(candidates, min_size=1, max_size=3), tables(), st.booleans(), st.integers(1, 32), factors)
def test_the_cut_is_the_defined_one(lanes, table, recurrent, max_rows, known):
    prices, max_rows = PriceModel(table), max(max_rows, len(lanes))
    blends = [Blend(forest, known) for forest in lanes]
    cut = Cutter(prices, recurrent=recurrent).best(blends, 0, max_rows)
    value, wanted = reference.best_cut(
        [dict(zip(paths_of(blend), blend.q, strict=True)) for blend in blends], prices, recurrent, max_rows
    )
    kept = cut.kept()
    found = {(i, paths_of(blends[i])[node]) for i, nodes in enumerate(kept) for node in nodes}
    assert cut.value == pytest.approx(value, rel=1e-12) and found == wanted
    for i, (tree, blend) in enumerate(zip(cut.trees(kept), blends, strict=True)):
        assert tree.is_tree and {reference.path_of(tree, node) for node in range(1, len(tree))} == {
            path for lane, path in wanted if lane == i
        }
        by_path = dict(zip(paths_of(blend), blend.q, strict=True))
        assert tree.scores == [by_path[reference.path_of(tree, node)] for node in range(len(tree))]
        assert _contiguous(tree)


def _contiguous(tree: DraftTree) -> bool:
    """Whether every subtree is a range of nodes."""
    below = [{node} for node in range(len(tree))]
    for node in range(len(tree) - 1, 0, -1):
        below[tree.parents[node]] |= below[node]
    return all(max(nodes) - node + 1 == len(nodes) for node, nodes in enumerate(below))


@given(candidates, st.integers(0, 14), st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_lessons_are_the_defined_ones(forest, num_verified, committed):
    blend = Blend(forest, {})
    paths, verified = paths_of(blend), set(range(1, min(num_verified, len(blend) - 1) + 1))
    counts = fates(blend, verified, committed)
    assert counts == reference.fates(forest, {paths[node] for node in verified}, committed)


@given(st.lists(st.tuples(candidates, st.lists(trees(), max_size=2)), min_size=1, max_size=3), tables(), st.booleans())
def test_being_asked_about_a_model_first_changes_no_choice(lanes, table, again):
    """Copies come first and the model's trees later into the same lists, as in a round; or other lists come."""
    numbers, contexts = list(range(len(lanes))), [100] * len(lanes)
    asked, fresh = (StairCut(PriceModel(table), learn_cost=False) for _ in range(2))
    growing = [list(copies) for copies, _ in lanes]
    asked.wants_model(growing, contexts, 32, numbers, "mtp")
    whole = [[*copies, *more] for copies, more in lanes]
    if again:
        growing = [list(forest) for forest in whole]
    else:
        for forest, (_, more) in zip(growing, lanes, strict=True):
            forest += more
    draft_ms = {"mtp": 1.0}
    chosen = asked.choose(growing, contexts, 32, numbers, draft_ms)
    assert chosen == fresh.choose(whole, contexts, 32, numbers, draft_ms)
    assert asked.choose(whole, contexts, 32, numbers, draft_ms) == chosen
