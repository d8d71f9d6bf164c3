"""Several runs of one thing as a median with its least and greatest, and ratios of runs that stood side by side.

Knows nothing of what was run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """Runs in the order they were made; at least one."""

    runs: tuple[float, ...]

    @classmethod
    def of(cls, runs: Iterable[float]) -> Spread:
        return cls(tuple(runs))

    @property
    def median(self) -> float:
        return median(self.runs)

    @property
    def least(self) -> float:
        return min(self.runs)

    @property
    def greatest(self) -> float:
        return max(self.runs)

    def over(self, other: Spread) -> Spread:
        """Run by run: the i-th runs of both sides followed each other."""
        return Spread(tuple(mine / theirs for mine, theirs in zip(self.runs, other.runs, strict=True)))

    def times(self, factor: float) -> Spread:
        return Spread(tuple(factor * run for run in self.runs))

    def __add__(self, other: Spread) -> Spread:
        return Spread(self.runs + other.runs)

    def text(self, digits: int) -> str:
        """The median, and behind it the least and the greatest where there are several runs."""
        if len(self.runs) == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.greatest:.{digits}f})"

    def record(self) -> dict[str, Any]:
        """For JSON, rounded to what such runs can tell."""
        return {
            "median": _rounded(self.median),
            "least": _rounded(self.least),
            "greatest": _rounded(self.greatest),
            "runs": [_rounded(run) for run in self.runs],
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must reach, and what it should. An `aim` below `bound` wants small figures."""

    bound: float
    aim: float

    def verdict(self, value: float) -> str:
        """`aim reached`, `reached` or `missed`."""
        sign = 1 if self.aim >= self.bound else -1
        if sign * value >= sign * self.aim:
            return "aim reached"
        return "reached" if sign * value >= sign * self.bound else "missed"

    def __str__(self) -> str:
        return f"at {'least' if self.aim >= self.bound else 'most'} {self.bound:g}, aim {self.aim:g}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
