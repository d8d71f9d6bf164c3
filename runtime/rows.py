"""The rows of a pass and the moves of a commit, from spans, trees and accepted paths.

Letters: R rows, M moves, L lanes. `slots` [L] are the lanes' places of recurrent state, none for a model without it.
Knows where KV lies logically; knows nothing of tokens' worth, prices or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tandem.artifacts.io import BlockGeometry
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftRows, Moves, Rows
from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one lane that follow its `start` committed slots; the logits of the last `outputs` are wanted."""

    lane: int
    start: int
    tokens: Sequence[int]
    outputs: int


@dataclass(frozen=True, slots=True)
class DraftSpan:
    """Rows of one lane for a drafter, from position `start` on, each with a token and a tap to read.

    The last leaves its own in row `tap_out` of the ring, -1 for nowhere.
    """

    lane: int
    start: int
    tokens: Sequence[int]
    taps: Sequence[int]
    tap_out: int = -1


def draft_rows(kind: Kind, spans: Sequence[DraftSpan], table: np.ndarray) -> DraftRows:
    """Rows of kind draft, which guesses behind the last row of each span, or of kind sync."""
    position = [span.start + i for span in spans for i in range(len(span.tokens))]
    rows = DraftRows(
        token=[token for span in spans for token in span.tokens],
        position=position,
        lane=[span.lane for span in spans for _ in span.tokens],
        slot=position,
        prefix=[place + 1 for place in position],
        tap=[tap for span in spans for tap in span.taps],
        block_table=table,
    )
    if kind is Kind.DRAFT:
        rows.output_row = [end - 1 for end in accumulate(len(span.tokens) for span in spans)]
        rows.tap_out = [-1] * len(position)
        for row, span in zip(rows.output_row, spans, strict=True):
            rows.tap_out[row] = span.tap_out
    return rows


def block_rows(
    lanes: Sequence[int], starts: Sequence[int], anchors: Sequence[int], block: BlockGeometry, table: np.ndarray
) -> DraftRows:
    """Rows of kind draft: a block for each lane, whose anchor stands at its `starts`, all below being synced."""
    position = [start + i for start in starts for i in range(block.rows)]
    return DraftRows(
        token=[token for anchor in anchors for token in (anchor, *[block.mask_token] * (block.rows - 1))],
        position=position,
        lane=[lane for lane in lanes for _ in range(block.rows)],
        slot=position,
        prefix=[start for start in starts for _ in range(block.rows)],
        tap=[-1] * len(position),
        block_table=table,
        output_row=[row for row in range(len(position)) if row % block.rows],
    )


def extend_rows(spans: Sequence[Span], table: np.ndarray, slots: Sequence[int] = ()) -> Rows:
    """Rows of kind extend: every token stays, in the slot of its own position."""
    position = [span.start + i for span in spans for i in range(len(span.tokens))]
    ends = accumulate(len(span.tokens) for span in spans)
    return Rows(
        token=[token for span in spans for token in span.tokens],
        position=position,
        lane=[span.lane for span in spans for _ in span.tokens],
        slot=position,
        prefix=[place + 1 for place in position],
        output_row=[row for span, end in zip(spans, ends, strict=True) for row in range(end - span.outputs, end)],
        block_table=table,
        parent=_parents([range(-1, len(span.tokens) - 1) for span in spans]) if slots else (),
        state_slot=slots,
    )


def step_rows(
    lanes: Sequence[int],
    starts: Sequence[int],
    anchors: Sequence[int],
    table: np.ndarray,
    slots: Sequence[int] = (),
) -> Rows:
    """Rows of a plain step: one anchor per lane behind its `starts` committed slots."""
    after, parent = [start + 1 for start in starts], [-1] * len(lanes) if slots else ()
    return Rows(anchors, starts, lanes, starts, after, range(len(lanes)), table, parent=parent, state_slot=slots)


def verify_kind(trees: Sequence[DraftTree]) -> Kind:
    """The cheapest kind that verifies all `trees` in one pass."""
    return Kind.VERIFY_CHAIN if all(tree.is_chain for tree in trees) else Kind.VERIFY_TREE


def verify_rows(
    kind: Kind,
    lanes: Sequence[int],
    starts: Sequence[int],
    trees: Sequence[DraftTree],
    table: np.ndarray,
    slots: Sequence[int] = (),
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
    output_row, follows = range(len(token)), _parents([tree.parents for tree in trees]) if slots else ()
    if kind is not Kind.VERIFY_TREE:
        after = [place + 1 for place in position]
        return Rows(token, position, lane, slot, after, output_row, table, None, follows, slots)
    prefix = [start for start, tree in zip(starts, trees, strict=True) for _ in tree.tokens]
    return Rows(token, position, lane, slot, prefix, output_row, table, ancestor, follows, slots)


def commit_moves(
    lanes: Sequence[int],
    starts: Sequence[int],
    trees: Sequence[DraftTree],
    paths: Sequence[Sequence[int]],
    table: np.ndarray,
    slots: Sequence[int] = (),
) -> Moves:
    """Moves that bring the accepted `paths` (node indices, the anchor's 0 first) into the slots of their positions.

    `trees` are those of the last verify. With `slots` the paths are there whole.
    """
    lane, source, target, row, first = list[int](), list[int](), list[int](), list[int](), 0
    for index, start, tree, path in zip(lanes, starts, trees, paths, strict=True):
        for depth, node in enumerate(path):
            if slots or node != depth:
                lane.append(index)
                source.append(start + node)
                target.append(start + depth)
                row.append(first + node)
        first += len(tree)
    return Moves(lane, source, target, table, row, slots)


def _parents(lines: Sequence[Sequence[int]]) -> list[int]:
    """The row of a pass that each follows, from such a list of each lane's own; -1 where it is none of the pass."""
    parents: list[int] = []
    for line in lines:
        first = len(parents)
        parents += [first + above if above >= 0 else -1 for above in line]
    return parents
