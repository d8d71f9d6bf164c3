"""Which drafted nodes are worth a row, over all lanes of a round: those that commit most tokens a millisecond.

Every round with candidates calls `choose`, and `settle` with what it committed. A lane is `open`ed when it is
admitted and `close`d when it ends. Sees trees and prices, never a drafter's inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel, context_key
from tandem.runtime.meter import Plain
from tandem.runtime.router.calibration import Evidence, fates
from tandem.runtime.router.ledger import Ledger
from tandem.tree import DraftTree

MARGIN = 1.03  # a draft must promise this much more than the plain step
TEACH = 0.2  # how much a closed lane moves what the next one starts from
NO_ANCHOR = -1  # token of the root given to a lane without candidates


@dataclass(frozen=True, slots=True)
class Cut:
    """The likeliest `count` drafted nodes of a forest, of value `value`: expected tokens a millisecond."""

    forest: list[DraftTree]
    ranked: list[tuple[float, int, int]]
    count: int
    value: float

    def trees(self) -> list[DraftTree]:
        """One tree per lane; several together have at most the nodes asked for."""
        if len(self.forest) == 1 and self.forest[0].is_chain:
            return [self.forest[0].truncate(1 + self.count)]
        keep: list[list[int]] = [[0] for _ in self.forest]
        for _, i, node in self.ranked[: self.count]:
            keep[i].append(node)
        return [tree.subset(nodes) for tree, nodes in zip(self.forest, keep, strict=True)]


@dataclass(frozen=True, slots=True)
class Round:
    """What was chosen, until it is settled. No trees: a plain step."""

    lanes: Sequence[int]
    forest: list[DraftTree]
    trees: list[DraftTree]
    context: int


class Router:
    """Cuts drafts at the bundle's prices. What it learns of costs outlives requests; evidence is a lane's own.

    With `recurrent` layers a line is committed as a tree is: a state has to be moved on, however much was right.
    `declined` hears why a round with candidates is to be plain.
    """

    def __init__(
        self, prices: PriceModel, *, recurrent: bool = False, declined: Callable[[Plain], None] = lambda reason: None
    ) -> None:
        self._prices, self._recurrent, self._declined = prices, recurrent, declined
        self._evidence: dict[int, Evidence] = {}
        self._taught: dict[str, float] = {}
        self._ledgers: dict[tuple[int, int], Ledger] = {}
        self._round: Round | None = None

    def open(self, lane: int) -> None:
        """A lane starts from what closed lanes taught; lanes side by side do not touch each other's evidence."""
        self._evidence[lane] = Evidence(dict(self._taught))

    def close(self, lane: int) -> None:
        """Drops a lane's evidence; an unknown lane is nothing to close."""
        evidence = self._evidence.pop(lane, None)
        for source, factor in evidence.factors().items() if evidence else ():
            old = self._taught.get(source, 1.0)
            self._taught[source] = old + TEACH * (factor - old)

    def reset(self) -> None:
        """Forgets all text evidence and keeps costs."""
        self._taught = {}
        self._evidence = {lane: Evidence({}) for lane in self._evidence}

    def choose(
        self,
        candidates: Sequence[Sequence[DraftTree]],
        contexts: Sequence[int],
        max_rows: int,
        lanes: Sequence[int] | None = None,
    ) -> list[DraftTree]:
        """One tree per lane, at most `max_rows` (>= lanes) nodes together; [] is the plain step.

        `contexts` are committed lengths in tokens. `lanes` are the lanes' numbers, 0, 1, .. if left out. A lane
        without candidates gets a root over NO_ANCHOR.
        """
        lanes, context, forest = lanes or range(len(candidates)), max(contexts), joined(candidates)
        for lane in lanes:
            if lane not in self._evidence:
                self.open(lane)
        plain = len(lanes) / self._prices.ms(context, Kind.EXTEND, len(lanes))
        cut = self._cut(lanes, forest, context, max_rows, plain)
        if not all(tree.is_chain for tree in forest):
            # Lines have a price of their own, so a forest with branches is tried as its lines too.
            cut = max(cut, self._cut(lanes, lines(candidates), context, max_rows, plain), key=lambda cut: cut.value)
        gain = cut.value / plain
        promised = gain > MARGIN
        drafted = promised and self._ledger(context, len(lanes)).allows(gain)
        if not drafted:
            self._declined(Plain.MEASURED if promised else Plain.PRICE)
        self._round = Round(lanes, forest, cut.trees() if drafted else [], context)
        return self._round.trees

    def settle(self, committed: Sequence[Sequence[int]], ms: float | None = None) -> None:
        """Learns from what each lane committed (accepted tokens and the target's own) in the round last chosen.

        `ms` is the wall time of the round from draft to commit, None if something else ran in between.
        """
        last, self._round = self._round, None
        assert last is not None, "settle follows choose"
        trees: Sequence[DraftTree | None] = last.trees or [None] * len(last.forest)
        for lane, candidate, tree, tokens in zip(last.lanes, last.forest, trees, committed, strict=True):
            if lane in self._evidence and candidate.num_drafted:
                self._evidence[lane].learn(fates(candidate, tree, tokens))
        num_tokens = sum(map(len, committed))
        if ms is not None and num_tokens:
            self._ledger(last.context, len(committed)).settle(bool(last.trees), ms, num_tokens)

    def _ledger(self, context: int, num_lanes: int) -> Ledger:
        key = (context_key(context), num_lanes)
        if key not in self._ledgers:
            plain = self._prices.ms(context, Kind.EXTEND, num_lanes) / num_lanes
            drafted = plain
            if num_lanes == 1:  # the table's own wall times are those of one lane
                plain = self._prices.prior(context, "plain") or plain
                drafted = self._prices.prior(context, "spec") or plain
            self._ledgers[key] = Ledger(plain, drafted)
        return self._ledgers[key]

    def _ranked(self, lanes: Sequence[int], forest: Sequence[DraftTree]) -> list[tuple[float, int, int]]:
        """(q, tree, node) of all drafted nodes, likeliest first and every parent before its children."""
        ranked = []
        for i, (lane, tree) in enumerate(zip(lanes, forest, strict=True)):
            evidence, parents, scores, sources = self._evidence[lane], tree.parents, tree.scores, tree.sources
            factors = {source: evidence.factor(source) for source in set(sources)}
            q = [1.0]
            for node in range(1, len(parents)):
                # A path is no likelier than its beginning, whatever the factors of its sources.
                q.append(min(q[parents[node]], scores[node] * factors[sources[node]]))
                ranked.append((q[node], i, node))
        ranked.sort(key=_by_falling_q)
        return ranked

    def _cut(self, lanes: Sequence[int], forest: list[DraftTree], context: int, max_rows: int, plain: float) -> Cut:
        """The count of most expected tokens a millisecond; every count is tried, as prices are a staircase.

        `plain` is the value of the plain step, which no drafted node has to be better than.
        """
        num_lanes = len(forest)
        ranked = self._ranked(lanes, forest)[: max(0, min(max_rows, MAX_TREE_ROWS) - num_lanes)]
        most = num_lanes + len(ranked)
        chain, tree, commit = (
            self._prices.per_rows(context, kind, most) for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.COMMIT)
        )
        value, best = plain, 0
        gained, in_line, last = 0.0, True, [0] * num_lanes
        for count, (q, i, node) in enumerate(ranked, 1):
            gained += q
            in_line = in_line and forest[i].parents[node] == last[i]
            last[i] = node
            move = commit[min(int(num_lanes + gained), most)]
            rows = num_lanes + count
            # A line is in place already and pays for what is rejected; a tree's path has to be moved together.
            spared = gained / count if in_line and not self._recurrent else 0.0
            ms = (chain if in_line else tree)[rows] + move * (1.0 - spared)
            if num_lanes + gained > value * ms:
                value, best = (num_lanes + gained) / ms, count
        return Cut(forest, ranked, best, value)


def _by_falling_q(entry: tuple[float, int, int]) -> float:
    return -entry[0]


def joined(candidates: Sequence[Sequence[DraftTree]]) -> list[DraftTree]:
    """All that each lane proposes, as one tree."""
    return [reduce(DraftTree.merged, trees) if trees else DraftTree.root(NO_ANCHOR) for trees in candidates]


def lines(candidates: Sequence[Sequence[DraftTree]]) -> list[DraftTree]:
    """Each lane's line of most expected tokens; the root alone where there is none."""
    best = []
    for trees in candidates:
        root = DraftTree.root(trees[0].tokens[0] if trees else NO_ANCHOR)
        best.append(max((tree for tree in trees if tree.is_chain), key=lambda tree: sum(tree.scores), default=root))
    return best
