"""A device that draws, in Python's own numbers: what it is brought of texts it keeps, and noise of what it is not.

Knows nothing of lanes' texts but by `Wishes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.runtime.executor.base import Wishes
from tandem.wish import FRESH, WISH, Wish
from tests.sampling_reference import chosen, philox

LOW = (1 << 64) - 1


class FakeDraws:
    """`drawn` counts the ids that were drawn."""

    def __init__(self, geometry: Geometry) -> None:
        self._seen = np.random.default_rng(5).integers(0, 9, (geometry.max_lanes, geometry.vocab_size), np.int32)
        self.drawn = 0

    def draw(self, wishes: Wishes, logits: Sequence[np.ndarray]) -> list[int]:
        """An id for each row of logits fp32 [V], -1 where none is wished."""
        assert wishes.row.shape == (len(logits), WISH) and wishes.row.dtype == np.int64
        assert len(wishes.said) == len(logits) and len(wishes.fresh) <= FRESH
        for lane, counts in wishes.seen:
            self._seen[lane] = counts
        for lane, token in wishes.fresh:
            self._seen[lane, token] += 2
        return [
            self._draw(row, values, said) if row[Wish.LANE] >= 0 else -1
            for row, values, said in zip(wishes.row, logits, wishes.said, strict=True)
        ]

    def _draw(self, row: np.ndarray, logits: np.ndarray, said: Sequence[int]) -> int:
        self.drawn += 1
        values = logits.copy()
        for token in range(len(values)) if row[Wish.COUNTED] else ():
            known = self._seen[row[Wish.LANE], token] + 2 * list(said).count(token)
            if known:
                values[token] = _less(
                    values[token], int(known) // 2, *map(_real, row[Wish.REPETITION : Wish.PRESENCE + 1])
                )
        word = [int(number) for number in row]
        noise = philox((word[Wish.SEED] & LOW, 0), (word[Wish.POSITION] + 1, 0, 0, 0))[0]
        share = word[Wish.TOP_P] & LOW or 1 << 64
        scale = float(_real(row[Wish.SCALE]))
        return chosen(values.tolist(), scale, word[Wish.TOP_K], share, word[Wish.MIN_P], noise)


def _less(
    logit: np.float32, times: int, repetition: np.float32, frequency: np.float32, presence: np.float32
) -> np.float32:
    f = np.float32
    logit = f(logit / repetition) if logit > 0 else f(logit * repetition)
    return f(f(logit - f(frequency * f(times))) - f(presence * f(times > 0)))


def _real(bits: np.int64) -> np.float32:
    return np.int32(bits).view(np.float32)
