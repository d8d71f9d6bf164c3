"""Rounds over lattices whose right tokens stand on the walk, beside it, or nowhere."""

from __future__ import annotations

import pytest
import torch

from drafted import accepted, rounds, ways
from tandem.compile.train.drafter.replay import Lattices
from tandem.tree import DraftTree

TEXT = [1, 2, 3, 4, 5, 6, 7, 8]
SLOTS, K = 3, 2


def lattices(side: int) -> Lattices:
    """Of every token of TEXT but the last: the walk is right but in slot `side`, where the second candidate is."""
    blocks = len(TEXT) - 1
    candidates, scores = torch.full((blocks, SLOTS, K), 99), torch.zeros(blocks, SLOTS, K, K)
    for at in range(blocks):
        for slot, token in enumerate(TEXT[at + 1 : at + 1 + SLOTS]):
            candidates[at, slot, int(slot == side)] = token
    scores[..., 0] = 1.0
    return Lattices(candidates, scores, torch.zeros(blocks, SLOTS, dtype=torch.long))


@pytest.mark.parametrize(
    ("side", "mode", "nodes", "committed"),
    [
        (9, "chain", 99, [4, 3]),  # the last round ends with the text
        (1, "chain", 99, [2, 2, 2, 1]),
        (1, "paths", 14, [4, 3]),
        (1, "nodes", 14, [4, 3]),
        (0, "chain", 99, [1] * 7),
        (9, "chain", 1, [2, 2, 2, 1]),
    ],
)
def test_rounds(side: int, mode: str, nodes: int, committed: list[int]) -> None:
    assert list(rounds(lattices(side), TEXT, 0, mode, nodes)) == committed


def test_a_tree_accepts_along_one_branch() -> None:
    #     0 - 1(5) - 2(6)
    #     |     `--- 3(7) - 4(8)
    #     `- 5(9)
    tree = DraftTree([0, 5, 6, 7, 8, 9], [-1, 0, 1, 1, 3, 0], [1.0] * 6, ["root"] + ["x"] * 5)
    assert [accepted(tree, text) for text in ([5, 7, 8, 1], [5, 6, 8], [9, 6], [4], [], [5])] == [3, 2, 1, 0, 0, 1]


def test_ways_are_named_by_mode_and_nodes() -> None:
    assert ways([7]) == {"chain": ("chain", 99), "paths 7": ("paths", 7), "nodes 7": ("nodes", 7)}
