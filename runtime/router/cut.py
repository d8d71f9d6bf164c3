"""Which drafted nodes are worth a row, over all lanes of a round: those that commit most tokens a millisecond.

Every round with candidates calls `choose`, and `settle` with what it committed. A lane is `open`ed when it is
admitted and `close`d when it ends. Sees trees and prices, never a drafter's inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel, context_key
from tandem.runtime.router.calibration import Evidence, fates
from tandem.runtime.router.ledger import Ledger
from tandem.tree import DraftTree

MARGIN = 1.03  # a draft must promise this much more than the plain step
TEACH = 0.2  # how much a closed lane moves what the next one starts from
NO_ANCHOR = -1  # token of the root given to a lane without candidates


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to play a round: one tree per lane, the tokens it is expected to commit and what it should cost."""

    trees: list[DraftTree]
    tokens: float
    ms: float

    @property
    def value(self) -> float:
        """Expected tokens a millisecond."""
        return self.tokens / self.ms


@dataclass(frozen=True, slots=True)
class Round:
    """What was chosen, until it is settled."""

    lanes: Sequence[int]
    trees: list[DraftTree]
    drafted: bool
    context: int


class Router:
    """Cuts drafts at the bundle's prices. What it learns of costs outlives requests; evidence is a lane's own."""

    def __init__(self, prices: PriceModel) -> None:
        self._prices = prices
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
        """One tree per lane, at most `max_rows` (>= lanes) nodes together; roots alone are the plain step.

        `contexts` are committed lengths in tokens. `lanes` are the lanes' numbers, 0, 1, .. if left out. A lane
        without candidates gets a root over NO_ANCHOR.
        """
        lanes, context, forest = lanes or range(len(candidates)), max(contexts), joined(candidates)
        for lane in lanes:
            if lane not in self._evidence:
                self.open(lane)
        roots = [tree.truncate(1) for tree in forest]
        plain = Cut(roots, len(roots), self._prices.ms(context, Kind.EXTEND, len(roots)))
        # Lines have a price of their own, so a forest with branches is tried as its lines too.
        forests = [forest] if all(tree.is_chain for tree in forest) else [forest, lines(candidates, roots)]
        cut = max((self._cut(lanes, trees, context, max_rows) for trees in forests), key=lambda cut: cut.value)
        gain = cut.value / plain.value
        drafted = gain > MARGIN and self._ledger(context, len(lanes)).allows(gain)
        chosen = cut if drafted else plain
        self._round = Round(lanes, chosen.trees, drafted, context)
        return chosen.trees

    def settle(
        self,
        candidates: Sequence[Sequence[DraftTree]],
        committed: Sequence[Sequence[int]],
        ms: float | None = None,
    ) -> None:
        """Learns from what each lane committed (accepted tokens and the target's own) in the round last chosen.

        `ms` is the wall time of the round from draft to commit, None if something else ran in between.
        """
        last, self._round = self._round, None
        assert last is not None, "settle follows choose"
        for lane, candidate, tree, tokens in zip(last.lanes, joined(candidates), last.trees, committed, strict=True):
            if lane in self._evidence:
                self._evidence[lane].learn(fates(candidate, tree, tokens))
        num_tokens = sum(map(len, committed))
        if ms is not None and num_tokens:
            self._ledger(last.context, len(committed)).settle(last.drafted, ms, num_tokens)

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
            factors = {source: self._evidence[lane].factor(source) for source in set(tree.sources)}
            q = [1.0]
            for node in range(1, len(tree)):
                # A path is no likelier than its beginning, whatever the factors of its sources.
                q.append(min(q[tree.parents[node]], tree.scores[node] * factors[tree.sources[node]]))
                ranked.append((q[node], i, node))
        ranked.sort(key=lambda entry: -entry[0])
        return ranked

    def _cut(self, lanes: Sequence[int], forest: list[DraftTree], context: int, max_rows: int) -> Cut:
        """The count of most expected tokens a millisecond; every count is tried, as prices are a staircase."""
        num_lanes = len(forest)
        ranked = self._ranked(lanes, forest)[: max(0, min(max_rows, MAX_TREE_ROWS) - num_lanes)]
        chain, tree, commit = (
            self._prices.per_rows(context, kind) for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.COMMIT)
        )
        best, best_count = Cut([], num_lanes, self._prices.ms(context, Kind.EXTEND, num_lanes)), 0
        gained, in_line, last = 0.0, True, [0] * num_lanes
        for count, (q, i, node) in enumerate(ranked, 1):
            gained += q
            in_line = in_line and forest[i].parents[node] == last[i]
            last[i] = node
            move = commit[min(int(num_lanes + gained), MAX_TREE_ROWS)]
            rows = num_lanes + count
            # A line is in place already and pays for what is rejected; a tree's path has to be moved together.
            ms = chain[rows] + move * (1.0 - gained / count) if in_line else tree[rows] + move
            if (num_lanes + gained) / ms > best.value:
                best, best_count = Cut([], num_lanes + gained, ms), count
        keep: list[list[int]] = [[0] for _ in forest]
        for _, i, node in ranked[:best_count]:
            keep[i].append(node)
        return Cut([whole.subset(nodes) for whole, nodes in zip(forest, keep, strict=True)], best.tokens, best.ms)


def joined(candidates: Sequence[Sequence[DraftTree]]) -> list[DraftTree]:
    """All that each lane proposes, as one tree."""
    return [reduce(DraftTree.merged, trees) if trees else DraftTree.root(NO_ANCHOR) for trees in candidates]


def lines(candidates: Sequence[Sequence[DraftTree]], roots: Sequence[DraftTree]) -> list[DraftTree]:
    """Each lane's line of most expected tokens, or its root."""
    return [
        max((tree for tree in trees if tree.is_chain), key=lambda tree: sum(tree.scores), default=root)
        for trees, root in zip(candidates, roots, strict=True)
    ]
