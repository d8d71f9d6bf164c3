"""How likely the model itself held a token: the logits' own distribution, before penalties, temperature and filters.

A function of one row of logits, so it is the same whatever was guessed, verified or served beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_ALTERNATIVES = 20
"""The most that a client may ask for, as OpenAI and vLLM have it."""
LEAST = -9999.0
"""Stands for minus infinity, which JSON does not hold; vLLM's value."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's natural logarithm of probability, and the most likely (id, logprob) in its place, falling.

    `rank` counts from 1, the most likely.
    """

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int


def measure(logits: np.ndarray, token: int, alternatives: int) -> TokenLogprob:
    """Of logits fp32 [V]: exponentials in fp32, their sum in float64. Equal ones rank by id; NaN is never likely."""
    logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    top = logits.max()
    with np.errstate(invalid="ignore"):
        total = float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))
    count = min(alternatives, len(logits))
    floor = np.partition(logits, len(logits) - count)[len(logits) - count] if count else np.inf
    ids = np.flatnonzero(logits >= floor) if count else np.empty(0, np.int64)
    ranked = ids[np.argsort(-logits[ids], kind="stable")][:count]

    def of(i: int) -> float:
        return max(float(logits[i]) - total, LEAST) if np.isfinite(total) else LEAST

    own = logits[token]
    rank = 1 + np.count_nonzero(logits > own) + np.count_nonzero(logits[:token] == own)
    return TokenLogprob(token, of(token), tuple((int(i), of(int(i))) for i in ranked), int(rank))
