"""One staircase: milliseconds over row counts of one kind of pass, and how it follows the live times.

Knows nothing of classes, kinds or files.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from tandem.keys import MAX_TREE_ROWS

FOLLOW = 0.1  # weight of a new sample
FADE = 0.005  # how far what was not measured this time goes back to the table, per sample
OUTLIER = 4.0  # a sample counts as at most this many times the price it meets


@dataclass(slots=True)
class Curve:
    """Price over row counts of one kind: points of the table, times what all passes of the class share (`common`,
    given with every call), times the ratio learned live.

    `now` counts the samples of the curve's class, in any kind. What was learned ages when it is read, back to the
    table, so that one slow spell does not keep a count dear for good and a sample costs the same at any width.
    """

    counts: list[int]
    points: list[float]  # ms, rising
    step_ms: float | None
    blind: bool = False  # no table: the first sample of a count is believed whole
    ratio: float | None = None  # live / (table times common) over all counts; None until measured
    at: int = 0  # when it was measured last
    ratios: dict[int, tuple[float, int]] = field(default_factory=dict)  # of a measured run's last count, and when
    _shape: list[float] = field(default_factory=list)
    _runs: list[tuple[int, int]] = field(default_factory=list)
    _known: tuple[tuple[int, float] | None, list[float]] = None, []

    def table(self, rows: int) -> float:
        """ms of the table alone: linear between counts, `step_ms` or the last slope beyond the last."""
        counts, points = self.counts, self.points
        i = bisect_left(counts, rows)
        if i == 0:
            return points[0]
        if i < len(counts):
            share = (rows - counts[i - 1]) / (counts[i] - counts[i - 1])
            return min(points[i], points[i - 1] + (points[i] - points[i - 1]) * share)
        slope = self.step_ms
        if slope is None:
            slope = (points[-1] - points[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else 0.0
        return points[-1] + slope * (rows - counts[-1])

    def shape(self) -> list[float]:
        """ms of the table at 1..32 rows."""
        self._shape = self._shape or [self.table(r) for r in range(1, MAX_TREE_ROWS + 1)]
        return self._shape

    def runs(self) -> list[tuple[int, int]]:
        """For 1..32 rows, the first and the last count of their program: two counts of the table that cost the same are
        one, with all between them, which is followed as one."""
        if not self._runs:
            self._runs = [(rows, rows) for rows in range(1, MAX_TREE_ROWS + 1)]
            points = list(zip(self.counts, self.points, strict=True))
            for (low, ms), (high, same) in pairwise(points):
                if ms == same and low <= MAX_TREE_ROWS:
                    first, last = self._runs[low - 1][0], min(high, MAX_TREE_ROWS)
                    self._runs[first - 1 : last] = [(first, last)] * (last - first + 1)
        return self._runs

    def per_rows(self, now: int, common: float) -> list[float]:
        """ms at 0..32 rows; 0 rows cost nothing."""
        asked, known = self._known
        if asked == (now, common):
            return known
        shape, ratio = self.shape(), self.over_all(now) * common
        live = [ms * ratio for ms in shape]
        for last in tuple(self.ratios):  # whole at once: it may be asked for while another thread follows
            first, own = self.runs()[last - 1][0], common * self._of(last, now, ratio / common)
            live[first - 1 : last] = [ms * own for ms in shape[first - 1 : last]]
        known = [0.0, *accumulate(live, max)]
        self._known = (now, common), known
        return known

    def follow(self, rows: int, ms: float, now: int, common: float, weight: float = FOLLOW) -> float:
        """Learns a sample, the `now`th, of at most 32 rows; returns how many times its price it was."""
        rows = self.runs()[rows - 1][1]
        table = self.shape()[rows - 1]
        if table <= 0:  # an unpriced commit has no shape to scale: it takes the sample as its price
            self.counts, self.points, self._shape, self._runs, table = [1], [ms], [], [], ms
        over_all = self.over_all(now - 1)
        if self.blind and rows not in self.ratios:
            known = ratio = ms / table
        else:
            known = self._of(rows, now - 1, over_all)
            ratio = min(ms / (table * common), OUTLIER * known)
        self.ratios[rows] = (towards(known, ratio, weight), now)
        self.ratio = ratio if self.blind and self.ratio is None else towards(over_all, ratio, weight)
        self.at = now
        return ratio / known

    def over_all(self, now: int) -> float:
        """The ratio of counts that were never measured."""
        if self.ratio is None:
            return 1.0
        if self.blind or self.at >= now:
            return self.ratio
        return towards(1.0, self.ratio, (1.0 - FADE) ** (now - self.at))

    def _of(self, rows: int, now: int, over_all: float) -> float:
        if rows not in self.ratios:
            return over_all
        ratio, at = self.ratios[rows]
        return ratio if at >= now else towards(over_all, ratio, (1.0 - FADE) ** (now - at))


def towards(value: float, target: float, weight: float) -> float:
    return value + weight * (target - value)
