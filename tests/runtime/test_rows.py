"""Rows and moves worked by hand: what each row of a hybrid follows, and what its commit lists."""

from __future__ import annotations

import numpy as np

from tandem.keys import Kind
from tandem.runtime.rows import Span, commit_moves, extend_rows, step_rows, verify_rows
from tandem.tree import DraftTree

TABLE = np.zeros((3, 4), np.int32)
SLOTS = (2, 0, 1)
BUSH = DraftTree([9, 8, 7, 6], [-1, 0, 1, 0], [0.5] * 4, ["test"] * 4)
LINE = DraftTree.chain(5, [4, 3], [0.5, 0.5], "test")


def test_rows_of_a_prompt_follow_each_other_in_their_lane() -> None:
    spans = [Span(1, 7, [5, 6, 7], 1), Span(0, 0, [8], 0), Span(2, 3, [1, 2], 2)]
    rows = extend_rows(spans, TABLE, SLOTS)
    assert rows.parent == [-1, 0, 1, -1, -1, 4] and rows.state_slot == SLOTS
    assert rows.lane == [1, 1, 1, 0, 2, 2] and list(rows.output_row) == [2, 4, 5]


def test_steps_follow_what_their_lanes_hold() -> None:
    rows = step_rows([2, 0], [7, 9], [1, 1], TABLE, SLOTS)
    assert rows.parent == [-1, -1] and rows.state_slot == SLOTS


def test_rows_of_trees_follow_their_parents() -> None:
    rows = verify_rows(Kind.VERIFY_TREE, [1, 0], [10, 20], [BUSH, LINE], TABLE, SLOTS)
    assert rows.parent == [-1, 0, 1, 0, -1, 4, 5]
    assert rows.position == [10, 11, 12, 11, 20, 21, 22]
    chains = verify_rows(Kind.VERIFY_CHAIN, [1, 0], [10, 20], [LINE, LINE], TABLE, SLOTS)
    assert chains.parent == [-1, 0, 1, -1, 3, 4] and chains.ancestor is None


def test_a_commit_of_a_hybrid_lists_whole_paths() -> None:
    moves = commit_moves([1, 0], [10, 20], [BUSH, LINE], [[0, 3], [0, 1, 2]], TABLE, SLOTS)
    assert (moves.lane, moves.row) == ([1, 1, 0, 0, 0], [0, 3, 4, 5, 6])
    assert (moves.source, moves.target) == ([10, 13, 20, 21, 22], [10, 11, 20, 21, 22])
    assert moves.state_slot == SLOTS


def test_without_a_state_only_what_has_to_move_is_listed() -> None:
    moves = commit_moves([1, 0], [10, 20], [BUSH, LINE], [[0, 3], [0, 1, 2]], TABLE)
    assert (moves.lane, moves.source, moves.target, moves.state_slot) == ([1], [13], [11], ())
    spans = [Span(0, 0, [5], 1)]
    for rows in (extend_rows(spans, TABLE), verify_rows(Kind.VERIFY_CHAIN, [0], [0], [LINE], TABLE)):
        assert not rows.parent and not rows.state_slot
