"""The rows of a pass and the moves of a commit, from spans, trees and accepted paths.

Letters: R rows, M moves. Knows where KV lies logically; knows nothing of tokens' worth, prices or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one lane that follow its `start` committed slots; `output` asks for the last one's logits."""

    lane: int
    start: int
    tokens: Sequence[int]
    output: bool


def extend_rows(spans: Sequence[Span], table: np.ndarray) -> Rows:
    """Rows of kind extend: every token stays, in the slot of its own position."""
    position = [span.start + i for span in spans for i in range(len(span.tokens))]
    ends = accumulate(len(span.tokens) for span in spans)
    return Rows(
        token=[token for span in spans for token in span.tokens],
        position=position,
        lane=[span.lane for span in spans for _ in span.tokens],
        slot=position,
        prefix=[place + 1 for place in position],
        output_row=[end - 1 for span, end in zip(spans, ends, strict=True) if span.output],
        block_table=table,
    )


def step_rows(lanes: Sequence[int], starts: Sequence[int], anchors: Sequence[int], table: np.ndarray) -> Rows:
    """Rows of a plain step: one anchor per lane behind its `starts` committed slots."""
    return Rows(anchors, starts, lanes, starts, [start + 1 for start in starts], range(len(lanes)), table)


def verify_kind(trees: Sequence[DraftTree]) -> Kind:
    """The cheapest kind that verifies all `trees` in one pass."""
    return Kind.VERIFY_CHAIN if all(tree.is_chain for tree in trees) else Kind.VERIFY_TREE


def verify_rows(
    kind: Kind, lanes: Sequence[int], starts: Sequence[int], trees: Sequence[DraftTree], table: np.ndarray
) -> Rows:
    """Rows of one tree per lane over its `starts` committed slots; every row's logits are wanted.

    Node i of a tree is written to slot start + i and stands at position start + depth(i).
    """
    token: list[int] = []
    position: list[int] = []
    slot: list[int] = []
    lane: list[int] = []
    ancestor: list[list[int]] = []
    for index, start, tree in zip(lanes, starts, trees, strict=True):
        first = len(ancestor)
        token += tree.tokens
        slot += range(start, start + len(tree))
        lane += [index] * len(tree)
        for node, parent in enumerate(tree.parents):
            above = ancestor[first + parent] if parent >= 0 else []
            position.append(start + len(above))
            ancestor.append([*above, start + node])
    output_row = range(len(token))
    if kind is not Kind.VERIFY_TREE:
        return Rows(token, position, lane, slot, [place + 1 for place in position], output_row, table)
    prefix = [start for start, tree in zip(starts, trees, strict=True) for _ in tree.tokens]
    return Rows(token, position, lane, slot, prefix, output_row, table, ancestor)


def commit_moves(
    lanes: Sequence[int], starts: Sequence[int], paths: Sequence[Sequence[int]], table: np.ndarray
) -> Moves:
    """Moves that bring the accepted `paths` (node indices, the anchor's 0 first) into the slots of their positions."""
    lane, source, target = list[int](), list[int](), list[int]()
    for index, start, path in zip(lanes, starts, paths, strict=True):
        for depth, node in enumerate(path):
            if node != depth:
                lane.append(index)
                source.append(start + node)
                target.append(start + depth)
    return Moves(lane, source, target, table)
