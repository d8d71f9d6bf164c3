"""The round loop: draft, verify, accept, commit, for all decoding lanes in one pass.

Knows nothing of how guesses are made, how passes run, or where tokens go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.executor.base import Executor
from tandem.runtime.lane import Lane
from tandem.runtime.rows import commit_moves, verify_kind, verify_rows
from tandem.runtime.sampling import draw
from tandem.tree import DraftTree


class Router(Protocol):
    """Picks one tree per lane; a tree of the root alone is a plain step. `lanes` are numbers of opened lanes."""

    def open(self, lane: int) -> None: ...

    def choose(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int]
    ) -> list[DraftTree]: ...

    def settle(self, candidates: list[list[DraftTree]], committed: list[list[int]], ms: float) -> None: ...

    def close(self, lane: int) -> None: ...


class Prices(Protocol):
    """Learns what passes cost."""

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None: ...


def play_round(lanes: Sequence[Lane], executor: Executor, table: np.ndarray, router: Router, prices: Prices) -> None:
    """One round of `lanes`, all decoding and at most `max_joint_rows(executor)`. Each commits at least one token."""
    began = perf_counter()
    max_rows = max_joint_rows(executor)
    indices, starts = [lane.index for lane in lanes], [lane.kv_length for lane in lanes]

    # Draft
    candidates = [lane.propose(max_rows - len(lanes), executor.geometry.vocab_size) for lane in lanes]
    trees = [DraftTree.root(lane.ids[-1]) for lane in lanes]
    if any(candidates):
        chosen = router.choose(candidates, starts, max_rows, indices)
        trees = [pick if pick.num_drafted else plain for pick, plain in zip(chosen, trees, strict=True)]

    # Verify
    kind = verify_kind(trees)
    rows = verify_rows(kind, indices, starts, trees, table)
    outcome = executor.run(kind, rows)
    prices.observe(max(starts), kind, len(rows.token), outcome.ms)

    # Accept
    offsets = np.cumsum([0, *map(len, trees)])[:-1].tolist()
    paths, committed = [], []
    for lane, tree, offset in zip(lanes, trees, offsets, strict=True):
        path, tokens = walk(tree, target(lane, executor, outcome.argmax, offset, tree), lane.ticket.request.stop_ids)
        paths.append(path)
        committed.append(tokens)

    # Commit
    moves = commit_moves(indices, starts, paths, table)
    if len(moves.lane):
        prices.observe(max(starts), Kind.COMMIT, len(moves.lane), executor.commit(moves))
    for lane, tree, path, tokens, offset in zip(lanes, trees, paths, committed, offsets, strict=True):
        lane.commit(tokens, len(path))
        lane.inform([offset + node for node in path], tokens)
        lane.stats.rounds += 1
        lane.stats.drafted += tree.num_drafted
        lane.stats.accepted += len(path) - 1
    if any(candidates):
        router.settle(candidates, committed, (perf_counter() - began) * 1e3)
    for lane, tokens in zip(lanes, committed, strict=True):
        lane.stats.decode_ms += (perf_counter() - began) * 1e3
        lane.deliver(tokens)


def max_joint_rows(executor: Executor) -> int:
    """Rows that all lanes of a round share."""
    return min(MAX_TREE_ROWS, executor.geometry.max_rows, executor.geometry.max_outputs)


def target(lane: Lane, executor: Executor, argmax: np.ndarray, offset: int, tree: DraftTree) -> Callable[[int], int]:
    """The target's own token after a node of `tree`, whose rows start at output `offset` of the last pass."""
    sampling = lane.ticket.request.sampling
    if sampling.temperature == 0:
        return lambda node: int(argmax[offset + node])
    depths = tree.depths()
    return lambda node: draw(executor.logits(offset + node), sampling, lane.seed, len(lane.ids) + depths[node])


def walk(tree: DraftTree, pick: Callable[[int], int], stop_ids: Collection[int]) -> tuple[list[int], list[int]]:
    """Accepted nodes, the anchor first, and the tokens that they commit: one more than were guessed right.

    The walk follows the target's tokens while the tree guessed them, and ends at a stop id.
    """
    path, tokens = [0], [pick(0)]
    while tokens[-1] not in stop_ids:
        child = tree.follow(path[-1], tokens[-1])
        if child is None:
            break
        path.append(child)
        tokens.append(pick(child))
    return path, tokens
