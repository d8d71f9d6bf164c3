"""Counts of draws as trials: of tokens against their shares, and of places between 0 and 1 that should be uniform.

Knows nothing of how tokens were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.runtime.checks.goodness import Fit, fit

CELLS, PAIR_CELLS = 20, 4
"""Equal parts of 0 to 1 in which places are counted: single ones, and each of two that follow each other."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Counts of one kind, drawn as `sampling` says; `outside` were drawn and should have been filtered out."""

    kind: str
    where: str
    sampling: str
    draws: int
    fit: Fit
    outside: int = 0


def even(kind: str, where: str, sampling: str, counts: np.ndarray, outside: int = 0) -> Trial:
    """Of cells that are all as likely."""
    shares = np.full(len(counts), 1 / len(counts))
    return Trial(kind, where, sampling, int(counts.sum()), fit(counts, shares), outside)


def singles_of(places: Sequence[float]) -> np.ndarray:
    """Counts [CELLS] of places."""
    return np.bincount(_cells(places, CELLS), minlength=CELLS)


def pairs_of(places: Sequence[float]) -> np.ndarray:
    """Counts [PAIR_CELLS^2] of where two of `places` lie: the first and the second, the third and the fourth, ..."""
    cells = _cells(places[: len(places) // 2 * 2], PAIR_CELLS)
    return np.bincount(PAIR_CELLS * cells[::2] + cells[1::2], minlength=PAIR_CELLS**2)


def _cells(places: Sequence[float], number: int) -> np.ndarray:
    return np.minimum((np.array(places) * number).astype(np.int64), number - 1)
