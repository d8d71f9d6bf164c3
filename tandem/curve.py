"""One staircase: milliseconds over row counts of one kind of pass, and how it follows the live times.

Knows nothing of classes, kinds or files.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from tandem.keys import MAX_TREE_ROWS

FOLLOW = 0.1  # weight of a new sample
FADE = 0.005  # how far what was not measured this time goes back to the common drift, per sample
STALE = 0.005  # how far a price may lie behind what has only aged since
OUTLIER = 4.0  # a sample counts as at most this many times the price it meets


@dataclass(slots=True)
class Curve:
    """Price over row counts of one kind: points of the table times the ratio learned live.

    `now` counts the samples of the curve's class, in any kind. What was learned ages when it is read, back to the
    common drift, so that one slow spell does not keep a count dear for good and a sample costs the same at any width.
    """

    counts: list[int]
    points: list[float]  # ms, rising
    step_ms: float | None
    blind: bool = False  # no table: the first sample of a count is believed whole
    drift: float | None = None  # live / table over all counts; None until measured
    drift_at: int = 0
    ratios: dict[int, tuple[float, int]] = field(default_factory=dict)  # live / table of a measured count, and when
    _shape: list[float] = field(default_factory=list)
    _rows: list[float] = field(default_factory=list)
    _rows_of: int = -1
    _rows_drift: float = 0.0

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

    def per_rows(self, now: int, common: float) -> list[float]:
        """ms at 0..32 rows (0 rows cost nothing); `common` is the drift until this kind has its own.

        As exact as the last sample of this kind; what only ages is followed in steps of STALE.
        """
        drift = self.aged_drift(now, common)
        if self._rows_of != self.drift_at or abs(drift - self._rows_drift) > STALE * drift:
            shape = self.shape()
            live = [ms * drift for ms in shape]
            for rows in self.ratios:
                live[rows - 1] = shape[rows - 1] * self._ratio(rows, now, drift)
            self._rows, self._rows_of, self._rows_drift = [0.0, *accumulate(live, max)], self.drift_at, drift
        return self._rows

    def first(self, now: int, common: float) -> float:
        """ms at one row."""
        return self.shape()[0] * self._ratio(1, now, self.aged_drift(now, common))

    def follow(self, rows: int, ms: float, now: int, common: float) -> float:
        """Learns a sample, the `now`th, of at most 32 rows; returns its ratio to the table."""
        table = (self._shape or self.shape())[rows - 1]
        if table <= 0:  # an unpriced commit has no shape to scale: it takes the sample as its price
            self.counts, self.points, self._shape, table = [1], [ms], [], ms
        drift = self.aged_drift(now, common)
        if self.blind and rows not in self.ratios:
            known = ratio = ms / table
        else:
            known = self._ratio(rows, now, drift)
            ratio = min(ms / table, OUTLIER * known)
        self.ratios[rows] = (towards(known, ratio, FOLLOW), now)
        self.drift = ratio if self.blind and self.drift is None else towards(drift, ratio, FOLLOW)
        self.drift_at = now
        return ratio

    def aged_drift(self, now: int, common: float) -> float:
        if self.drift is None:
            return common
        if self.blind or self.drift_at == now:
            return self.drift
        return towards(common, self.drift, (1.0 - FADE) ** (now - self.drift_at))

    def _ratio(self, rows: int, now: int, drift: float) -> float:
        if rows not in self.ratios:
            return drift
        ratio, at = self.ratios[rows]
        return ratio if at == now else towards(drift, ratio, (1.0 - FADE) ** (now - at))


def towards(value: float, target: float, weight: float) -> float:
    return value + weight * (target - value)
