"""Lattice to tree: against every tree there is on small lattices, and against paths worked out in float64."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.lattice import Lattice
from tandem.tree import DraftTree

ANCHOR = 7


class Known:
    """A lattice and what follows from it by the definition, in float64."""

    def __init__(self, slots: int, k: int, seed: int, temperature: float = 1.4, spread: float = 2.0) -> None:
        random = np.random.default_rng(seed)
        self.candidates = np.array([random.choice(1000, k, replace=False) for _ in range(slots)], np.int32)
        self.scores = random.normal(0.0, spread, (slots, k, k)).astype(np.float32)
        self.greedy = [int(random.integers(k)) for _ in range(slots)]
        wide = self.scores.astype(np.float64)
        exact = np.exp((wide - wide.max(-1, keepdims=True)) / temperature)
        self._chances = exact / exact.sum(-1, keepdims=True)
        self.lattice = Lattice(ANCHOR, self.candidates, self.scores, self.greedy, temperature)

    def score(self, path: tuple[int, ...]) -> float:
        """Of a path of candidates."""
        chance = 1.0
        for slot, (before, index) in enumerate(zip((0, *path), path, strict=False)):
            chance *= self._chances[slot, before, index]
        return chance

    def paths(self, tree: DraftTree) -> list[tuple[int, ...]]:
        """The candidates on the way to each drafted node, whose score is checked."""
        found = []
        for node in range(1, len(tree)):
            tokens = [tree.tokens[i] for i in tree.path(node)[1:]]
            path = tuple(int(np.flatnonzero(self.candidates[slot] == t)[0]) for slot, t in enumerate(tokens))
            assert tree.scores[node] == pytest.approx(self.score(path), rel=1e-4)
            found.append(path)
        assert tree.tokens[0] == ANCHOR and tree.is_tree and len(set(found)) == len(found)
        assert set(tree.sources[1:]) <= {"block"}
        return found


lattices = st.builds(Known, st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))


@given(lattices, st.integers(0, 12), st.sampled_from(["paths", "nodes"]))
def test_a_tree_is_full_and_holds_the_walk(known, max_nodes, mode):
    paths = known.paths(known.lattice.tree(max_nodes, mode))
    slots, k = known.candidates.shape
    assert len(paths) == min(max_nodes, sum(k**depth for depth in range(1, slots + 1)))
    for depth in range(1, min(slots, max_nodes) + 1):
        assert tuple(known.greedy[:depth]) in paths


@pytest.mark.parametrize("mode", ["paths", "nodes"])
@pytest.mark.parametrize(("slots", "k", "every"), [(2, 2, 6), (3, 2, 14), (2, 3, 12), (3, 3, 39)])
def test_where_there_is_room_every_path_is_in(slots, k, every, mode):
    known = Known(slots, k, seed=3)
    assert len(known.paths(known.lattice.tree(every, mode))) == len(known.paths(known.lattice.tree(99, mode))) == every


@given(st.builds(Known, st.integers(1, 3), st.integers(1, 3), st.integers(0, 10_000)), st.integers(0, 3))
def test_no_tree_around_the_walk_expects_more_than_nodes(known, more):
    slots, k = known.candidates.shape
    walk = [tuple(known.greedy[:depth]) for depth in range(1, slots + 1)]
    every = [()]
    for _ in range(slots):
        every += [(*path, index) for path in every if len(path) == len(every[-1]) for index in range(k)]
    others = [path for path in every[1:] if path not in walk]
    more = min(more, len(others))
    best = 0.0
    for extra in combinations(others, more):
        kept = {(), *walk, *extra}
        if all(path[:-1] in kept for path in extra):
            best = max(best, sum(map(known.score, extra)))
    tree = known.lattice.tree(slots + more, "nodes")
    assert sum(tree.scores[1:]) == pytest.approx(sum(map(known.score, walk)) + best, rel=1e-4)


@given(lattices, st.integers(0, 12), st.sampled_from(["paths", "nodes"]), st.floats(0.0, 0.3))
def test_what_is_hardly_likely_is_left_out_and_nothing_else(known, max_nodes, mode, least):
    paths, every = (
        known.paths(known.lattice.tree(max_nodes, mode, least)),
        set(known.paths(known.lattice.tree(9999, mode))),
    )
    likely = {path for path in every if known.score(path) >= least}
    assert set(paths) <= {path for path in every if known.score(path) >= least * (1 - 1e-4)}
    if len(paths) < max_nodes:
        surely = {path for path in likely if known.score(path) >= least * (1 + 1e-4)}
        assert surely <= set(paths)
    walk = [tuple(known.greedy[:depth]) for depth in range(1, min(len(known.greedy), max_nodes) + 1)]
    assert {path for path in walk if known.score(path) >= least * (1 + 1e-4)} <= set(paths)


def test_paths_follows_the_likeliest_side_step_to_the_end():
    """Two slots of two: the walk takes 0, 0; the other way is 1, then its better half."""
    candidates = np.array([[10, 11], [20, 21]])
    scores = np.zeros((2, 2, 2), np.float32)
    scores[0, 0] = np.log([0.6, 0.4])
    scores[1, 0] = np.log([0.9, 0.1])
    scores[1, 1] = np.log([0.2, 0.8])
    lattice = Lattice(ANCHOR, candidates, scores, [0, 0], temperature=1.0)
    by_paths, by_nodes = (lattice.tree(4, mode) for mode in ("paths", "nodes"))
    assert by_paths.tokens == by_nodes.tokens == [ANCHOR, 10, 20, 11, 21]
    assert by_paths.scores == pytest.approx([1, 0.6, 0.54, 0.4, 0.32])
    scores[0, 0] = np.log([0.95, 0.05])  # now the side step at the end, 0.095, is likelier than the one at the start
    lattice = Lattice(ANCHOR, candidates, scores, [0, 0], temperature=1.0)
    assert lattice.tree(3).tokens == lattice.tree(3, "nodes").tokens == [ANCHOR, 10, 20, 21]
    assert lattice.tree(5).tokens == [ANCHOR, 10, 20, 21, 11, 21]


@given(lattices, st.integers(0, 5))
def test_the_chain_is_the_walk(known, max_nodes):
    chain = known.lattice.chain(max_nodes)
    walk = [tuple(known.greedy[:depth]) for depth in range(1, min(max_nodes, len(known.greedy)) + 1)]
    assert chain.is_chain and known.paths(chain) == walk


def test_a_higher_temperature_is_less_sure():
    cool, warm = (Known(3, 4, seed=1, temperature=t).lattice.tree(12) for t in (1.0, 2.0))
    assert max(warm.scores[1:]) < max(cool.scores[1:])


@pytest.mark.parametrize("mode", ["paths", "nodes"])
def test_chances_of_nothing_are_in_once_where_there_is_room(mode):
    """Scores so far apart that most chances are 0."""
    known = Known(3, 2, seed=1, spread=1e5)
    tree = known.lattice.tree(99, mode)
    assert 0.0 in tree.scores and len(tree) == 15
    paths = [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]
    assert len(set(paths)) == 15


def test_scores_far_apart_are_no_overflow():
    known = Known(3, 4, seed=2, spread=1e4)
    tree = known.lattice.tree(12)
    assert all(0.0 <= score <= 1.0 for score in tree.scores) and tree.is_tree


def test_a_lattice_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match="a lattice of 2 slots by 3"):
        Lattice(ANCHOR, np.zeros((2, 3), np.int32), np.zeros((2, 3, 4), np.float32), [0, 0])
