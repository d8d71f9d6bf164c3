"""One lane's MTP drafter: trees of its guesses, what it learns of them, the rows it has to read."""

from __future__ import annotations

import pytest

from tandem.runtime.drafters.mtp import LEAST, MtpDrafter
from tandem.runtime.drafters.prob_deciles import ProbDeciles
from tandem.runtime.rows import DraftSpan
from tandem.tree import DraftTree


def drafter(deciles: ProbDeciles | None = None, prompt: tuple[int, ...] = (1, 2, 3)) -> MtpDrafter:
    made = MtpDrafter(4, lambda rows: [10 * row for row in rows], deciles or ProbDeciles())
    made.begin(prompt)
    return made


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    return {tuple(tree.tokens[above] for above in tree.path(node)): tree.scores[node] for node in range(1, len(tree))}


def test_guesses_become_a_chain_with_second_choices_beside_it() -> None:
    made = drafter()
    assert made.guess([(5, 0.6), (7, 0.3)]) == pytest.approx(0.6)
    assert made.guess([(8, 0.5), (9, 0.4)]) == pytest.approx(0.3)
    (tree,) = made.propose(31)
    wanted = {(3, 5): 0.6, (3, 7): 0.3, (3, 5, 8): 0.3, (3, 5, 9): 0.24}
    assert paths(tree) == pytest.approx(wanted)
    assert tree.is_tree and set(tree.sources[1:]) == {"mtp"}
    assert tree.tokens == [3, 5, 8, 9, 7]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_nodes_are_offered_than_asked_for(most: int) -> None:
    made = drafter()
    for token in (5, 6, 7):
        made.guess([(token, 0.9), (9, 0.1)])
    (tree,) = made.propose(most)
    assert tree.num_drafted == most and tree.tokens[: most + 1] == [3, 5, 6, 7][: most + 1]


def test_what_is_hardly_likely_is_not_offered() -> None:
    made = drafter()
    made.guess([(5, 0.5), (7, LEAST / 2)])
    (chain,) = made.propose(31)
    assert chain.tokens == [3, 5]
    made.guess([(8, LEAST), (9, LEAST / 2)])
    assert made.propose(31) == [chain]
    unsure = drafter()
    unsure.guess([(8, LEAST / 2), (9, LEAST / 3)])
    assert unsure.propose(31) == []


def test_guesses_are_for_one_round() -> None:
    made = drafter()
    assert made.propose(31) == []
    made.guess([(5, 0.6), (7, 0.3)])
    made.observe([5, 6])
    assert made.propose(31) == [] and made.ids == [1, 2, 3, 5, 6]


@pytest.mark.parametrize(
    ("came", "counted"),
    [
        ([5], [(0.6, True), (0.3, False)]),
        ([7], [(0.6, False), (0.3, True)]),
        ([7, 8], [(0.6, False), (0.3, True)]),
        ([5, 9], [(0.6, True), (0.3, False), (0.5, False), (0.4, True)]),
        ([5, 8, 4, 4], [(0.6, True), (0.3, False), (0.5, True), (0.4, False)]),
    ],
)
def test_guesses_are_scored_as_far_as_their_fate_is_known(came: list[int], counted: list[tuple[float, bool]]) -> None:
    class Heard(ProbDeciles):
        def __init__(self) -> None:
            super().__init__()
            self.heard: list[tuple[float, bool]] = []

        def count(self, prob: float, hit: bool) -> None:
            self.heard.append((prob, hit))

    deciles = Heard()
    made = drafter(deciles)
    made.guess([(5, 0.6), (7, 0.3)])
    made.guess([(8, 0.5), (9, 0.4)])
    made.observe(came)
    assert deciles.heard == counted


def test_scores_follow_what_was_learned() -> None:
    deciles = ProbDeciles()
    for _ in range(20):
        deciles.count(0.6, False)
    made = drafter(deciles)
    made.guess([(5, 0.6), (7, 0.3)])
    (tree,) = made.propose(31)
    assert paths(tree) == pytest.approx({(3, 7): 0.3, (3, 5): deciles.rate(0.6)}) and deciles.rate(0.6) < 0.2
    assert tree.tokens[1] == 7, "likelier children stand first"


def test_rows_to_read_have_the_token_behind_their_position() -> None:
    made = drafter(prompt=(20, 21, 22, 23))
    made.sync([0, 1])
    made.sync([5, 6])
    made.observe([24])
    assert made.backlog(3) == DraftSpan(4, 0, [21, 22, 23], [0, 10, 50], -1)
    assert made.read(3) == [0, 10, 50]
    assert made.backlog(1, 8) == DraftSpan(4, 3, [24], [60], 8)
    assert made.read(1) == [60] and made.pending == []
    made.guess([(30, 0.9), (31, 0.1)])
    # The token 30 stands at position 5, so the row before it at 4.
    assert made.ahead(8, 9) == DraftSpan(4, 4, (30,), (8,), 9)


def test_one_that_is_lost_keeps_nothing() -> None:
    made = drafter()
    made.sync([1, 2])
    made.guess([(5, 0.6), (7, 0.3)])
    assert made.lose() == [10, 20]
    made.sync([3])
    made.observe([5])
    assert made.lose() == [] and made.propose(31) == []
