"""Policies that a replay knows besides the routers that serve: a rule that stops early, and two that know the answers.

Each is StairCut with one thing exchanged, so that what is compared is that thing alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tandem.prices import PriceModel
from tandem.runtime.checks.recording import Text
from tandem.runtime.router.blend import Blend
from tandem.runtime.router.cut import Cut, Cutter, Forest, Stairs
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree

BINS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Lower ends of the classes of scores whose true chances the oracle knows."""
Chances = dict[tuple[str, str, int], float]
"""Accepted share of nodes by workload, source and class of score."""


class EarlyStop(Cutter):
    """Stops at the first node that makes the round worth less, as if prices were convex."""

    def _cut(self, forest: Forest, ranked: Sequence[int], num_in_line: int, stairs: Stairs) -> Cut:
        best = super()._cut(forest, [], 0, stairs)
        for count in range(1, len(ranked) + 1):
            longer = super()._cut(forest, ranked[:count], min(count, num_in_line), stairs)
            if longer.count < count:
                break
            best = longer
        return best


class Hindsight(Cutter):
    """Counts of the same order of nodes by what they turn out to commit of the tokens `ahead`."""

    ahead: Sequence[int] = ()

    def _cut(self, forest: Forest, ranked: Sequence[int], num_in_line: int, stairs: Stairs) -> Cut:
        known = replace(forest, q=list(map(float, fates_of(forest.blends[0], self.ahead))))
        return super()._cut(known, ranked, num_in_line, stairs)


class Knowing(StairCut):
    """Learns nothing of costs, and is told where in which text it is."""

    def __init__(self, prices: PriceModel, *, recurrent: bool, cutter: type[Cutter] = Cutter) -> None:
        super().__init__(prices, recurrent=recurrent, learn_cost=False, cutter=cutter, margin=1.0)

    def be_told(self, text: Text, position: int) -> None:
        """The next round is that of `position`."""


class Prophet(Knowing):
    """Each round takes the count that turns out best: a bound that no rule reaches."""

    def __init__(self, prices: PriceModel, *, recurrent: bool) -> None:
        super().__init__(prices, recurrent=recurrent, cutter=Hindsight)

    def be_told(self, text: Text, position: int) -> None:
        assert isinstance(self._cutter, Hindsight)
        self._cutter.ahead = text.tokens[position:-1]  # the last one is the target's own: a row for it brings nothing


class Oracle(Knowing):
    """Takes the count of most expected tokens a millisecond by the true chances of nodes of the workload, by source and
    score: the best that a rule can do which goes by these."""

    def __init__(self, prices: PriceModel, chances: Chances, *, recurrent: bool) -> None:
        super().__init__(prices, recurrent=recurrent)
        self._chances, self._workload = chances, ""

    def be_told(self, text: Text, position: int) -> None:
        self._workload = text.workload

    def _blends(self, candidates: Sequence[Sequence[DraftTree]], lanes: Sequence[int]) -> list[Blend]:
        blends = [Blend(trees, {}) for trees in candidates]
        for blend in blends:
            raw, q = blend.q, [1.0]
            for node in range(1, len(blend)):
                chance = self._chances.get(_key(self._workload, blend, node), raw[node])
                q.append(min(q[blend.parents[node]], chance))
            blend.q = q
        return blends


def true_chances(texts: Iterable[Text]) -> Chances:
    """What became of all that was drafted at all positions, verified or not."""
    counts: dict[tuple[str, str, int], list[int]] = {}
    for text in texts:
        for position, drafts in enumerate(text.drafts):
            blend, ahead = Blend(drafts, {}), text.tokens[position:]
            for node, fate in enumerate(fates_of(blend, ahead)):
                if node:
                    count = counts.setdefault(_key(text.workload, blend, node), [0, 0])
                    count[0] += fate
                    count[1] += 1
    return {key: accepted / trials for key, (accepted, trials) in counts.items()}


def fates_of(blend: Blend, ahead: Sequence[int]) -> list[bool]:
    """Whether each node's path is what comes; nodes past the text's end are not."""
    depth = [0]
    for parent, token in zip(blend.parents[1:], blend.tokens[1:], strict=True):
        above = depth[parent]
        depth.append(above + 1 if 0 <= above < len(ahead) and ahead[above] == token else -1)
    return [place >= 0 for place in depth]


def _key(workload: str, blend: Blend, node: int) -> tuple[str, str, int]:
    return workload, blend.source(node), bisect_right(BINS, blend.q[node])
