"""One lane's block drafter: trees of its lattice, what it learns of them, the rows it has to read."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.runtime.drafters.block import LEAST, BlockDrafter, Guessed
from tandem.runtime.drafters.reach import FIRST, Reach
from tandem.runtime.rows import DraftSpan
from tandem.tree import DraftTree

TEMPERATURE = 1.4


def drafter(prompt: tuple[int, ...] = (1, 2, 3), usual: Reach | None = None) -> BlockDrafter:
    made = BlockDrafter(4, lambda rows: [10 * row for row in rows], usual or Reach())
    made.begin(prompt)
    return made


def lattice(*slots: tuple[list[int], list[list[float]]], walk: list[int]) -> Guessed:
    """Of each slot its candidates and, behind each of the slot before, the chance of each of them."""
    scores = np.array([TEMPERATURE * np.log(rows) for _, rows in slots], np.float32)
    return Guessed(np.array([tokens for tokens, _ in slots], np.int32), scores, walk)


TWO = lattice(
    ([5, 7], [[0.7, 0.3], [0.7, 0.3]]),
    ([8, 9], [[0.6, 0.4], [0.05, 0.95]]),
    walk=[0, 0],
)


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    return {tuple(tree.tokens[above] for above in tree.path(node)): tree.scores[node] for node in range(1, len(tree))}


def test_a_lattice_becomes_a_tree() -> None:
    made = drafter()
    made.guess(TWO, 31)
    (tree,) = made.propose(31)
    wanted = {(3, 5): 0.7, (3, 7): 0.3, (3, 5, 8): 0.42, (3, 5, 9): 0.28, (3, 7, 9): 0.285}
    assert paths(tree) == pytest.approx(wanted), "0.015 for 8 behind 7 is hardly likely"
    assert 0.3 * 0.05 < LEAST < 0.28
    assert tree.is_tree and set(tree.sources[1:]) == {"block"}


@pytest.mark.parametrize(("most", "drafted"), [(1, [5]), (2, [5, 8]), (3, [5, 8, 7]), (4, [5, 8, 7, 9])])
def test_no_more_nodes_are_offered_than_asked_for_and_those_are_the_likeliest(most: int, drafted: list[int]) -> None:
    made = drafter()
    made.guess(TWO, 31)
    (tree,) = made.propose(most)
    assert tree.tokens[1:] == drafted
    made.guess(TWO, most)
    assert made.propose(31) == [tree] and made.propose(0) == []


def test_a_walk_that_is_hardly_likely_is_not_followed() -> None:
    sure = [[0.99, 0.01], [0.99, 0.01]]
    made = drafter()
    made.guess(lattice(([5, 7], sure), ([8, 9], [[0.01, 0.99], [0.5, 0.5]]), walk=[0, 0]), 31)
    (line,) = made.propose(31)
    assert line.tokens == [3, 5, 9], "what is likelier than the walk goes on"
    made = drafter()
    made.guess(lattice(([5, 7], sure), ([8, 9], sure), walk=[1, 0]), 31)
    (tree,) = made.propose(31)
    assert tree.tokens == [3, 5, 8], "a walk astray is none"
    made = drafter()
    made.guess(lattice(([5, 7], sure), ([8, 9], sure), walk=[0, 0]), 31)
    (chain,) = made.propose(31)
    assert chain.tokens == [3, 5, 8], "there is nothing beside it"


def test_lattices_are_for_one_round() -> None:
    made = drafter()
    assert made.propose(31) == []
    made.guess(TWO, 31)
    made.observe([5, 6])
    assert made.propose(31) == [] and made.ids == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("came", "hits", "trials"),
    [([5], 1, 1), ([7], 0, 1), ([7, 8], 0, 1), ([5, 9], 1, 2), ([5, 8], 2, 2), ([5, 8, 4, 4], 2, 2)],
)
def test_the_walk_is_scored_as_far_as_its_fate_is_known(came: list[int], hits: int, trials: int) -> None:
    made, wanted = drafter(), Reach(Reach())
    wanted.learn(hits, trials)
    made.guess(TWO, 31)
    made.observe(came)
    assert made.reach.chance == pytest.approx(wanted.chance)


def test_rounds_without_a_lattice_teach_nothing_but_age() -> None:
    made = drafter()
    for _ in range(30):
        made.guess(TWO, 31)
        made.observe([7])
    doubted = made.reach.chance
    made.observe([5])
    assert doubted < made.reach.chance < FIRST


def test_rows_to_read_have_their_own_token() -> None:
    made = drafter(prompt=(20, 21, 22, 23))
    made.sync([0, 1])
    made.sync([5, 6])
    made.observe([24])
    assert made.backlog(3) == DraftSpan(4, 0, [20, 21, 22], [0, 10, 50], -1)
    assert made.read(3) == [0, 10, 50]
    assert made.backlog(1) == DraftSpan(4, 3, [23], [60], -1)
    assert made.read(1) == [60] and made.pending == []


def test_one_that_is_lost_keeps_nothing() -> None:
    made = drafter()
    made.sync([1, 2])
    made.guess(TWO, 31)
    assert made.lose() == [10, 20] and made.propose(31) == []
    made.sync([3])
    made.observe([5])
    assert made.lose() == []
