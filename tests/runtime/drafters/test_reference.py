"""Lines, counts and trees against their definitions, followed step by step."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.lattice import Lattice
from tandem.runtime.drafters.lookup import LookupDrafter
from tandem.runtime.drafters.rates import LOCAL, MAX_TRIALS, STORE, CopyRates
from tandem.runtime.drafters.votes import LEAST, REACH, Witnesses, vote_line

VOCAB = 3
lines = st.lists(st.integers(-1, VOCAB), max_size=40)


@st.composite
def witnesses(draw: st.DrawFn) -> Witnesses:
    found = Witnesses(draw(st.integers(2, 140)), VOCAB)
    for source in (LOCAL, STORE):
        after = draw(st.lists(lines, max_size=3))
        found.add(after, [draw(st.sampled_from([0.5, 1.0, 2.0])) for _ in after], source)
    return found


def line_by_steps(heard: Witnesses, rates: CopyRates, run: int, max_nodes: int) -> list[tuple[int, float, str]]:
    """At every step the token of the most votes, as long as anybody speaks and it is likely enough."""
    score, voters, line = 1.0, heard.all(), list[tuple[int, float, str]]()
    for depth in range(min(max_nodes, REACH)):
        if not (votes := heard.poll(voters, depth)):
            break
        score *= rates.rate(heard.source(voters), heard.agreed + depth, run + depth)
        mass, token, voters = votes[0]
        if len(votes) > 1:
            score *= mass / sum([mass for mass, _, _ in votes])
        if score < LEAST:
            break
        line.append((token, score, heard.source(voters)))
    return line


@given(witnesses(), st.integers(0, 40), st.integers(1, 40))
def test_a_line_is_what_its_steps_make_of_it(heard, run, max_nodes):
    line = vote_line(7, heard, CopyRates(), run, max_nodes)
    assert line.is_chain and (line.tokens[0], line.scores[0], line.sources[0]) == (7, 1.0, "root")
    found = list(zip(line.tokens[1:], line.scores[1:], line.sources[1:], strict=True))
    assert found == line_by_steps(heard, CopyRates(), run, max_nodes)


@given(st.lists(st.integers(0, 2), min_size=2, max_size=60), st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_what_came_is_counted_step_by_step(prompt, came):
    drafter, rates = LookupDrafter(), CopyRates()
    drafter.begin(prompt)
    drafter.propose(31)
    heard, voters = copy.deepcopy(drafter._witnesses), drafter._witnesses.all()
    drafter.observe(came)
    for depth, token in enumerate(came):
        votes = {said: who for _, said, who in heard.poll(voters, depth)}
        if not votes:
            break
        rates.count(heard.source(voters), heard.agreed + depth, depth, token in votes)
        voters = votes.get(token, [])
    assert drafter._rates._counts == rates._counts and drafter._rates._rates == rates._rates


def test_many_trials_at_once_fade_as_single_ones_do():
    one, other = CopyRates(), CopyRates()
    for _ in range(int(2 * MAX_TRIALS) // 32):
        one.count_all(LOCAL, 200, 50, 32)
        for _ in range(32):
            other.count(LOCAL, 200, 50, True)
    assert one.rate(LOCAL, 200, 50) == pytest.approx(other.rate(LOCAL, 200, 50), rel=1e-3)
    assert all(sum(counts) <= MAX_TRIALS for counts in one._counts.values())


def tree_by_steps(chances: np.ndarray, greedy: list[int], max_nodes: int, follow: bool) -> dict[tuple[int, ...], float]:
    """The walk, then each time the likeliest step beside what is there, and with `follow` what is likeliest behind."""

    def chance(path: tuple[int, ...]) -> float:
        return float(chances[len(path) - 1, path[-2] if len(path) > 1 else 0, path[-1]])

    slots, k, _ = chances.shape
    found = {(): 1.0}
    for depth in range(1, min(slots, max_nodes) + 1):
        path = tuple(greedy[:depth])
        found[path] = found[path[:-1]] * chance(path)
    while len(found) <= max_nodes:
        steps = [(*path, i) for path in found if len(path) < slots for i in range(k)]
        if not (steps := [step for step in steps if step not in found]):
            break
        path = max(steps, key=lambda step: found[step[:-1]] * chance(step))
        while len(found) <= max_nodes:
            found[path] = found[path[:-1]] * chance(path)
            if not follow or len(path) == slots:
                break
            path = max(((*path, i) for i in range(k)), key=chance)
    return found


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10_000), st.integers(0, 30), st.booleans())
def test_a_lattices_tree_is_what_its_steps_make_of_it(slots, k, seed, max_nodes, follow):
    chance = np.random.default_rng(seed)
    candidates = np.array([100 * slot + np.arange(k) for slot in range(slots)])
    scores, greedy = chance.normal(0, 2, (slots, k, k)).astype(np.float32), chance.integers(k, size=slots).tolist()
    lattice = Lattice(7, candidates, scores, greedy)
    tree = lattice.tree(max_nodes, "paths" if follow else "nodes")
    found = {tuple(tree.tokens[i] % 100 for i in tree.path(node)[1:]): tree.scores[node] for node in range(len(tree))}
    assert found == tree_by_steps(lattice._chances.T.reshape(slots, k, k), greedy, max_nodes, follow)
