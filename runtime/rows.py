"""The rows of a pass and the moves of a commit, from spans, trees and accepted paths.

Letters: R rows, M moves. Knows where KV lies logically; knows nothing of tokens' worth, prices or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one lane that follow its `start` committed slots; `output` asks for the last one's logits."""

    lane: int
    start: int
    tokens: Sequence[int]
    output: bool


def _array(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def extend_rows(spans: Sequence[Span], table: np.ndarray) -> Rows:
    """Rows of kind extend: every token stays, in the slot of its own position."""
    position = _array([span.start + i for span in spans for i in range(len(span.tokens))])
    ends = np.cumsum([len(span.tokens) for span in spans]) - 1
    return Rows(
        token=_array([token for span in spans for token in span.tokens]),
        position=position,
        lane=_array([span.lane for span in spans for _ in span.tokens]),
        slot=position.copy(),
        prefix=position + 1,
        output_row=_array([int(end) for span, end in zip(spans, ends, strict=True) if span.output]),
        block_table=table,
    )


def verify_kind(trees: Sequence[DraftTree]) -> Kind:
    """The cheapest kind that runs all `trees` in one pass."""
    if not all(tree.is_chain for tree in trees):
        return Kind.VERIFY_TREE
    return Kind.VERIFY_CHAIN if any(tree.num_drafted for tree in trees) else Kind.EXTEND


def verify_rows(
    kind: Kind, lanes: Sequence[int], starts: Sequence[int], trees: Sequence[DraftTree], table: np.ndarray
) -> Rows:
    """Rows of one tree per lane over its `starts` committed slots; every row's logits are wanted.

    Node i of a tree is written to slot start + i and stands at position start + depth(i).
    """
    position: list[int] = []
    slot: list[int] = []
    ancestor = np.zeros((sum(map(len, trees)), MAX_TREE_ROWS), np.int32)
    for start, tree in zip(starts, trees, strict=True):
        for node, depth in enumerate(tree.depths()):
            ancestor[len(slot), : depth + 1] = [start + j for j in tree.path(node)]
            position.append(start + depth)
            slot.append(start + node)
    branching = kind is Kind.VERIFY_TREE
    return Rows(
        token=_array([token for tree in trees for token in tree.tokens]),
        position=_array(position),
        lane=np.repeat(_array(lanes), [len(tree) for tree in trees]),
        slot=_array(slot),
        prefix=np.repeat(_array(starts), [len(tree) for tree in trees]) if branching else _array(position) + 1,
        output_row=np.arange(len(slot), dtype=np.int32),
        block_table=table,
        ancestor=ancestor if branching else None,
    )


def commit_moves(
    lanes: Sequence[int], starts: Sequence[int], paths: Sequence[Sequence[int]], table: np.ndarray
) -> Moves:
    """Moves that bring the accepted `paths` (node indices, the anchor's 0 first) into the slots of their positions."""
    moves = [
        (lane, start + node, start + depth)
        for lane, start, path in zip(lanes, starts, paths, strict=True)
        for depth, node in enumerate(path)
        if node != depth
    ]
    lane, source, target = (_array([move[i] for move in moves]) for i in range(3))
    return Moves(lane, source, target, table)
