"""Which drafted nodes are worth a row, over all lanes of a round: those that commit most tokens a millisecond.

Knows nothing of drafters, evidence or wall time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add, truediv

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel
from tandem.runtime.router.blend import Blend
from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class HostTime:
    """ms that the host's part takes behind the choice, outside passes, of a plain round and of one that verifies."""

    plain: float = 0.0
    drafted: float = 0.0


NO_HOST = HostTime()


@dataclass(slots=True)
class Stairs:
    """ms at 0..32 rows of the passes of a round, or moves of a commit; the plain step's value; the host's part."""

    chain: Sequence[float]
    tree: Sequence[float]
    commit: Sequence[float]
    plain: float
    host_ms: float


@dataclass(slots=True)
class Forest:
    """All lanes' nodes behind each other; `firsts` are the places of the lanes' anchors."""

    blends: Sequence[Blend]
    firsts: Sequence[int]
    parents: Sequence[int]
    q: Sequence[float]

    @classmethod
    def of(cls, blends: Sequence[Blend]) -> Forest:
        if len(blends) == 1:
            return cls(blends, (0,), blends[0].parents, blends[0].q)
        firsts = list(accumulate([len(blend) for blend in blends], initial=0))[:-1]
        parents = [first + above for first, blend in zip(firsts, blends, strict=True) for above in blend.parents]
        return cls(blends, firsts, parents, [q for blend in blends for q in blend.q])

    def ranked(self) -> Sequence[int]:
        """The drafted nodes, likeliest first and parents before their children."""
        q = self.q
        if len(self.blends) == 1 and self.blends[0].is_line:
            return range(1, len(q))
        order = sorted(range(len(q)), key=q.__getitem__, reverse=True)
        for first in self.firsts:
            order.remove(first)
        return order

    def num_in_line(self, ranked: Sequence[int]) -> int:
        """How many of the first of `ranked` are a line of each lane."""
        seen: set[int] = set()
        for count, node in enumerate(ranked):
            if (parent := self.parents[node]) in seen:
                return count
            seen.add(parent)
        return len(ranked)

    def lines(self) -> list[int]:
        """The nodes of each lane's best line, as `ranked`."""
        lines = [first + node for first, blend in zip(self.firsts, self.blends, strict=True) for node in blend.line()]
        lines.sort(key=self.q.__getitem__, reverse=True)
        return lines


@dataclass(slots=True)
class Cut:
    """The first `count` of the `ranked` nodes of a forest, worth `value` expected tokens a millisecond."""

    forest: Forest
    ranked: Sequence[int]
    count: int
    value: float

    @property
    def expected(self) -> float:
        """Tokens that the round should commit."""
        q = self.forest.q
        return len(self.forest.blends) + sum([q[node] for node in self.ranked[: self.count]])

    def kept(self) -> list[list[int]]:
        """The kept nodes of each lane, the anchor left out."""
        nodes, firsts = self.ranked[: self.count], self.forest.firsts
        if len(firsts) == 1:
            return [list(nodes)]
        keep: list[list[int]] = [[] for _ in firsts]
        for node in nodes:
            lane = bisect_right(firsts, node) - 1
            keep[lane].append(node - firsts[lane])
        return keep

    def trees(self, kept: Sequence[Sequence[int]]) -> list[DraftTree]:
        """One tree per lane; several together have at most the nodes asked for."""
        return [blend.tree(nodes) for blend, nodes in zip(self.forest.blends, kept, strict=True)]


class Cutter:
    """Cuts at `prices`. With `recurrent` layers a line is committed as a tree is: a state has to be moved on."""

    def __init__(self, prices: PriceModel, *, recurrent: bool) -> None:
        self._prices, self._recurrent = prices, recurrent

    def best(self, blends: Sequence[Blend], context: int, max_rows: int, host: HostTime = NO_HOST) -> Cut:
        """The cut of most expected tokens a millisecond, of everything or of each lane's best line.

        Lines have prices of their own, so a forest with branches is tried as its lines too. A count of 0 is the plain
        step. What drafting took is spent, whatever is verified, and does not count.
        """
        forest, stairs = Forest.of(blends), self._stairs(context, len(blends), host)
        most = max(0, min(max_rows, MAX_TREE_ROWS) - len(blends))
        ranked = forest.ranked()[:most]
        if all(blend.is_line for blend in blends):
            return self._cut(forest, ranked, len(ranked), stairs)
        cut = self._cut(forest, ranked, forest.num_in_line(ranked), stairs)
        lines = forest.lines()[:most]
        straight = self._cut(forest, lines, len(lines), stairs)
        return straight if straight.value > cut.value else cut

    def plain(self, num_lanes: int, context: int, host: HostTime = NO_HOST) -> float:
        """Tokens a millisecond of the plain step."""
        return num_lanes / (self._prices.ms(context, Kind.EXTEND, num_lanes) + host.plain)

    def _stairs(self, context: int, num_lanes: int, host: HostTime) -> Stairs:
        passes = self._prices.per_rows
        chain, tree, commit = (passes(context, kind) for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.COMMIT))
        return Stairs(chain, tree, commit, self.plain(num_lanes, context, host), host.drafted)

    def _cut(self, forest: Forest, ranked: Sequence[int], num_in_line: int, stairs: Stairs) -> Cut:
        """The best count of `ranked` nodes, of which the first `num_in_line` are lines.

        Every count is tried, as prices are a staircase.
        """
        num_lanes, most = len(forest.blends), len(ranked)
        gains = list(accumulate(map(forest.q.__getitem__, ranked), initial=float(num_lanes)))[1:]
        first, fork = num_lanes + 1, num_lanes + 1 + num_in_line
        ms = [*stairs.chain[first:fork], *stairs.tree[fork : first + most]]
        # The KV of a line is in place already, however much is rejected; a tree's path is moved together.
        if (unmoved := 0 if self._recurrent else num_in_line) < most:
            moves = map(stairs.commit.__getitem__, map(int, gains[unmoved:]))
            ms[unmoved:] = map(add, ms[unmoved:], moves)
        values = [stairs.plain, *map(truediv, gains, map(stairs.host_ms.__add__, ms))]
        value = max(values)
        return Cut(forest, ranked, values.index(value), value)
