"""One token from one row of logits: a function of (logits, sampling, seed, position) and of nothing else.

docs/sampling.md defines it for other implementations: its tokens are the same on every machine. Knows nothing of lanes,
drafters or passes, so a seeded text is the same whatever guessed it.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.errors import RequestError
from tandem.runtime.exponential import UNIT, weigh
from tandem.runtime.noise import word
from tandem.runtime.request import Sampling

MEMBERS = 64
"""Ids of a group in the search for the largest."""
BLOCK = 8192
"""Ids whose weights are summed up at once in the search for the drawn one."""


def draw(logits: np.ndarray, sampling: Sampling, seed: int, position: int) -> int:
    """The id at index `position` of a lane, drawn from logits fp32 [V].

    Temperature 0 takes the largest logit, the lowest id among equals. Otherwise ids weigh what `weigh` says, in
    integers; `top_k`, `top_p`, `min_p` filter in this order; then the first id whose cumulative weight, in ascending
    order of ids, exceeds the share `word(seed, position)` / 2^64 of the whole. NaN logits are never drawn.
    """
    top = logits.max()
    if np.isnan(top):
        logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        top = logits.max()
    if sampling.temperature == 0.0 or top == -np.inf:
        return int(logits.argmax())
    if top == np.inf:  # outweighs every finite logit; differences to it would be NaN
        logits, top = np.where(logits == np.inf, np.float32(0.0), np.float32(-np.inf)), np.float32(0.0)
    noise, ids = word(seed, position), None
    if 0 < sampling.top_k < len(logits):
        ids = _largest(logits, sampling.top_k)
        logits = logits[ids]
    weights = weigh(logits, top, sampling.temperature)
    if sampling.top_p < 1.0 or sampling.min_p > 0.0:
        kept = _kept(weights, sampling)
        place = int(kept[_place(weights[kept], noise)])
    else:
        place = _place(weights, noise)
    return place if ids is None else int(ids[place])


def _place(weights: np.ndarray, noise: int) -> int:
    """The first place whose cumulative weight exceeds the share noise / 2^64 of the whole, sought block by block."""
    starts = range(0, len(weights), BLOCK)
    sums = [int(weights[start : start + BLOCK].sum()) for start in starts]
    left = noise * sum(sums) >> 64
    for start, inside in zip(starts, sums, strict=True):
        if left < inside:
            return start + int(np.cumsum(weights[start : start + BLOCK]).searchsorted(left, side="right"))
        left -= inside
    raise AssertionError("a share of the whole is less than the whole")


def _kept(weights: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Places, ascending, less those that `top_p` and `min_p` leave out; the heaviest always stays."""
    least = math.ceil(sampling.min_p * 2.0**UNIT)
    if sampling.top_p == 1.0:
        return np.flatnonzero(weights >= least)
    total = int(weights.sum())
    limit = -(-math.ceil(sampling.top_p * 2.0**64) * total >> 64)
    # Places lighter than this weigh together less than what lies beyond the limit, so none of them is needed.
    enough = max(least, -((limit - total) // len(weights)))
    heavy = np.flatnonzero(weights >= enough)
    order = heavy[np.argsort(-weights[heavy], kind="stable")]
    # The shortest prefix that reaches the limit: a place stays while the mass before it falls short.
    stays = order[: 1 + int(np.cumsum(weights[order]).searchsorted(limit))]
    stays.sort()
    return stays


def _largest(logits: np.ndarray, count: int) -> np.ndarray:
    """The ids of the `count` largest logits, ascending."""
    groups = -(-len(logits) // MEMBERS)
    if count <= groups:  # as many groups reach their `count`th best, each with an id of its own
        whole = logits[: len(logits) // groups * groups]
        best = whole.reshape(-1, groups).max(axis=0)
        floor = np.partition(best, groups - count)[groups - count]
    else:
        floor = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= floor)
    return np.sort(ids[_ranking(logits[ids])[:count]])


def _ranking(values: np.ndarray) -> np.ndarray:
    """Places by falling value; equal values stay in order."""
    return np.argsort(-values, kind="stable")


def validate(sampling: Sampling) -> None:
    """Raises RequestError naming the first field that is out of range."""
    s = sampling
    checks = (
        ("temperature", s.temperature, math.isfinite(s.temperature) and s.temperature >= 0, "a finite number >= 0"),
        ("top_p", s.top_p, 0 < s.top_p <= 1, "above 0 and at most 1"),
        ("top_k", s.top_k, s.top_k >= -1, "a positive count, or 0 or -1 for off"),
        ("min_p", s.min_p, 0 <= s.min_p <= 1, "between 0 and 1"),
    )
    for param, value, sound, wanted in checks:
        if not sound:
            raise RequestError(f"{param} is {value}; it must be {wanted}", param=param, code="invalid_value")
