"""Which tokens of a round a device draws itself, and all that it must know for it: docs/sampling.md defines the draw.

It draws for lanes whose logits nothing changes but a temperature, filters and penalties that count ids; for others the
host does. Of texts with penalties it keeps counts, which are brought up to date with each pass. Knows nothing of how
a pass runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import numpy as np

from tandem.runtime.executor.base import Wishes
from tandem.runtime.lane import Lane
from tandem.runtime.wish_row import wish_row
from tandem.tree import DraftTree
from tandem.wish import FRESH, WISH, Wish


@dataclass(slots=True)
class _Drawn:
    """A lane as a device knows it: its row of wishes, None for a host's; how many ids of its text are brought there."""

    lane: ReferenceType[Lane]  # which is gone when its request has ended
    row: np.ndarray | None
    counted: bool
    num_ids: int = 0


class Draws:
    """Makes the wishes of passes over a vocabulary of `vocab_size`; `greedy` lanes may be drawn too.

    A lane is told from one that had its number before: what the device kept of that one is written over.
    """

    def __init__(self, vocab_size: int, *, greedy: bool = True) -> None:
        self._vocab_size, self._greedy = vocab_size, greedy
        self._lanes: dict[int, _Drawn] = {}

    def wishes(
        self, lanes: Sequence[Lane], trees: Sequence[DraftTree] | None = None, *, others: int = 0
    ) -> Wishes | None:
        """Of a pass over the anchors of `lanes`, or over a tree of each, and `others` outputs behind them that the host
        looks after; None where it draws all tokens.

        What is brought is taken for known from then on, so the pass must run.
        """
        drawn = [self._drawn(lane) for lane in lanes]
        if all(one.row is None for one in drawn):
            return None
        sizes = [1] * len(lanes) if trees is None else [len(tree) for tree in trees]
        rows, said = np.zeros((sum(sizes) + others, WISH), np.int64), list[list[int]]()
        rows[:, Wish.LANE] = -1
        wishes = Wishes(rows, said, [], [])
        for i, (lane, one) in enumerate(zip(lanes, drawn, strict=True)):
            first, tree = len(said), None if trees is None else trees[i]
            paths = [list[int]()] if tree is None else _paths(tree)
            said += paths if one.counted else [[]] * len(paths)
            if one.row is not None:
                rows[first : len(said)] = one.row
                rows[first : len(said), Wish.POSITION] = [len(lane.ids) + len(path) for path in paths]
            if one.counted:
                self._bring(lane, one, wishes)
        said += [[]] * others
        return wishes

    def _drawn(self, lane: Lane) -> _Drawn:
        known = self._lanes.get(lane.index)
        if known is None or known.lane() is not lane:
            row = self._row(lane)
            known = self._lanes[lane.index] = _Drawn(ref(lane), row, row is not None and bool(row[Wish.COUNTED]))
        return known

    def _row(self, lane: Lane) -> np.ndarray | None:
        """The wishes of a lane, less positions; None for one whose tokens are chosen on the host."""
        counted = lane.penalized.counted if lane.penalized is not None else None
        greedy, others = lane.sampling.temperature == 0, len(lane.guides) - (counted is not None)
        if others or lane.ticket.request.logprobs is not None or (greedy and (counted is None or not self._greedy)):
            return None
        return wish_row(lane.index, lane.sampling, counted, lane.seed, self._vocab_size)

    def _bring(self, lane: Lane, one: _Drawn, wishes: Wishes) -> None:
        """Adds what the device does not know of a lane's text yet."""
        ids, penalized = lane.ids, lane.penalized
        assert penalized is not None and isinstance(wishes.fresh, list) and isinstance(wishes.seen, list)
        if not one.num_ids or len(wishes.fresh) + len(ids) - one.num_ids > FRESH:
            wishes.seen.append((lane.index, penalized.seen(self._vocab_size)))
        else:
            wishes.fresh += [(lane.index, token) for token in ids[one.num_ids :]]
        one.num_ids = len(ids)


def _paths(tree: DraftTree) -> list[list[int]]:
    """The drafted tokens on the path to each node, its own last; none to the anchor."""
    paths: list[list[int]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append([*paths[parent], token] if parent >= 0 else [])
    return paths
