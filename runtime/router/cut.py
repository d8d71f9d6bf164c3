"""Which drafted nodes are worth a row, over all lanes of a round: those that commit most tokens a millisecond.

Knows nothing of drafters, evidence or wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel
from tandem.runtime.router.blend import Blend
from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Cut:
    """The likeliest `count` drafted nodes of `blends`, worth `value` expected tokens a millisecond."""

    blends: Sequence[Blend]
    ranked: Sequence[tuple[float, int, int]]
    count: int
    value: float

    @property
    def expected(self) -> float:
        """Tokens that the round should commit."""
        return len(self.blends) + sum(q for q, _, _ in self.ranked[: self.count])

    def kept(self) -> list[list[int]]:
        """The kept nodes of each lane, the anchor left out."""
        keep: list[list[int]] = [[] for _ in self.blends]
        for _, i, node in self.ranked[: self.count]:
            keep[i].append(node)
        return keep

    def trees(self, kept: Sequence[Sequence[int]]) -> list[DraftTree]:
        """One tree per lane; several together have at most the nodes asked for."""
        return [blend.tree(nodes) for blend, nodes in zip(self.blends, kept, strict=True)]


class Cutter:
    """Cuts at `prices`. With `recurrent` layers a line is committed as a tree is: a state has to be moved on."""

    def __init__(self, prices: PriceModel, *, recurrent: bool) -> None:
        self._prices, self._recurrent = prices, recurrent

    def best(self, blends: Sequence[Blend], context: int, max_rows: int) -> Cut:
        """The cut of most expected tokens a millisecond, of everything or of each lane's best line.

        Lines have prices of their own, so a forest with branches is tried as its lines too. A count of 0 is the plain
        step. What drafting took is spent, whatever is verified, and does not count.
        """
        ranked = [
            entry
            for i, blend in enumerate(blends)
            for entry in zip(blend.q[1:], repeat(i), range(1, len(blend.q)), strict=False)
        ]
        ranked.sort(key=itemgetter(0), reverse=True)
        cut = self._cut(blends, ranked, context, max_rows)
        lines = [blend.line() for blend in blends]
        if sum(map(len, lines)) < len(ranked):
            straight = [(blends[i].q[node], i, node) for i, line in enumerate(lines) for node in line]
            straight.sort(key=itemgetter(0), reverse=True)
            cut = max(cut, self._cut(blends, straight, context, max_rows), key=lambda cut: cut.value)
        return cut

    def plain(self, num_lanes: int, context: int) -> float:
        """Tokens a millisecond of the plain step."""
        return num_lanes / self._prices.ms(context, Kind.EXTEND, num_lanes)

    def _cut(
        self,
        blends: Sequence[Blend],
        ranked: Sequence[tuple[float, int, int]],
        context: int,
        max_rows: int,
    ) -> Cut:
        """The best count of `ranked` nodes; every count is tried, as prices are a staircase."""
        num_lanes = len(blends)
        ranked = ranked[: max(0, min(max_rows, MAX_TREE_ROWS) - num_lanes)]
        chain, tree, commit = (
            self._prices.per_rows(context, kind) for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.COMMIT)
        )
        value, best = self.plain(num_lanes, context), 0
        gained, in_line, last = float(num_lanes), True, [0] * num_lanes
        passes = chain
        for rows, (q, i, node) in enumerate(ranked, num_lanes + 1):
            gained += q
            if in_line:
                if blends[i].parents[node] == last[i]:
                    last[i] = node
                else:
                    in_line, passes = False, tree
            ms = passes[rows]
            # The KV of a line is in place already, however much is rejected; a tree's path is moved together.
            if not in_line or self._recurrent:
                ms += commit[int(gained)]
            if gained > value * ms:
                value, best = gained / ms, rows - num_lanes
        return Cut(blends, ranked, best, value)
