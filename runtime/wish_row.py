"""One row of wishes: how a request's sampling, seed and penalties are spelt for a device that draws.

Knows nothing of lanes and passes. docs/sampling.md says what the numbers mean.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.runtime.exponential import UNIT, scale
from tandem.runtime.request import Penalties, Sampling
from tandem.wish import WISH, Wish


def wish_row(lane: int, sampling: Sampling, penalties: Penalties | None, seed: int, vocab_size: int) -> np.ndarray:
    """int64 [WISH]: what a row of `lane` wants drawn, at position 0."""
    row, s = np.zeros(WISH, np.int64), sampling
    row[Wish.LANE] = lane
    if s.temperature > 0:
        row[Wish.SCALE] = _bits(scale(s.temperature))
        row[Wish.TOP_K] = s.top_k if 0 < s.top_k < vocab_size else 0
        row[Wish.TOP_P] = _signed(math.ceil(s.top_p * 2.0**64)) if s.top_p < 1 else 0
        row[Wish.MIN_P] = math.ceil(s.min_p * 2.0**UNIT)
        row[Wish.SEED] = _signed(seed)
    if penalties is not None:
        row[Wish.COUNTED] = 1
        row[Wish.REPETITION] = _bits(penalties.repetition)
        row[Wish.FREQUENCY] = _bits(penalties.frequency)
        row[Wish.PRESENCE] = _bits(penalties.presence)
    return row


def _bits(real: float | np.float32) -> int:
    return int(np.float32(real).view(np.int32))


def _signed(number: int) -> int:
    """The int64 with the bits of `number` modulo 2^64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
