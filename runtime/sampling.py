"""One token from one row of logits: a function of (logits, sampling, seed, position) and of nothing else.

Knows nothing of lanes, drafters or passes, so a seeded text is the same whatever guessed it.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.errors import RequestError
from tandem.runtime.request import Sampling

_U64 = (1 << 64) - 1
MEMBERS = 64
"""Ids of a group in a draw from all, and in the search for the largest."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-30, 1e30
"""Temperatures beyond them are as good as 0 and infinity, and fp32 does not hold them."""


def uniform(seed: int, position: int) -> float:
    """The noise of a position: a float64 in [0, 1) with 53 random bits.

    Generator: numpy's `Philox` (Philox4x64-10, Salmon et al. 2011) with key = seed mod 2^64 and counter = position;
    the first 64-bit word it gives, shifted right by 11, times 2^-53. numpy adds 1 to the counter before a block, so
    that word is lane 0 of the block of counter position + 1.
    """
    word = int(np.random.Philox(key=seed & _U64, counter=position).random_raw())
    return (word >> 11) * 2.0**-53


def draw(logits: np.ndarray, sampling: Sampling, seed: int, position: int) -> int:
    """The id at index `position` of a lane, drawn from logits fp32 [V].

    Temperature 0 takes the largest logit, the lowest id among equals. Otherwise an id weighs exp((logit - largest) /
    temperature), computed in fp32 and summed in float64; `top_k`, `top_p`, `min_p` filter in this order; then the first
    id whose cumulative weight exceeds `uniform(seed, position)` of the whole. Ids that passed a filter are summed in
    ascending order; without a filter in that of (id mod G, id), G = ceil(V / 64), which sums columns of a matrix and
    is several times as fast as one long sum. NaN logits are never drawn.
    """
    top = logits.max()
    if np.isnan(top):
        logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        top = logits.max()
    if sampling.temperature == 0.0 or top == -np.inf:
        return int(logits.argmax())
    if top == np.inf:  # outweighs every finite logit; differences to it would be NaN
        logits, top = np.where(logits == np.inf, np.float32(0.0), np.float32(-np.inf)), np.float32(0.0)
    noise = uniform(seed, position)
    if not (0 < sampling.top_k < len(logits) or sampling.top_p < 1.0 or sampling.min_p > 0.0):
        return _of_all(_weights(logits, top, sampling), noise)
    ids, weights = _kept(logits, top, sampling)
    return int(ids[_place(np.cumsum(weights), noise)])


def _weights(logits: np.ndarray, top: np.float32, sampling: Sampling) -> np.ndarray:
    """exp((logit - top) / temperature), fp32."""
    temperature = np.float32(min(max(sampling.temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE))
    with np.errstate(over="ignore"):
        weights = logits - top
        weights /= temperature
    return np.exp(weights, out=weights)


def _of_all(weights: np.ndarray, noise: float) -> int:
    """The id drawn from all."""
    groups = -(-len(weights) // MEMBERS)
    columns = np.zeros((MEMBERS, groups), np.float32)
    columns.reshape(-1)[: len(weights)] = weights
    sums = np.cumsum(columns.sum(axis=0, dtype=np.float64))
    group = _place(sums, noise)
    before = sums[group - 1] if group else 0.0
    members = np.cumsum(columns[:, group], dtype=np.float64)
    return group + groups * _past(members, noise * sums[-1] - before)


def _place(cumulative: np.ndarray, noise: float) -> int:
    return _past(cumulative, noise * cumulative[-1])


def _past(cumulative: np.ndarray, target: float) -> int:
    """The first place that exceeds `target`; where rounding left none, the last that weighs anything."""
    place = int(cumulative.searchsorted(target, side="right"))
    return place if place < len(cumulative) else int(cumulative.searchsorted(cumulative[-1]))


def _kept(logits: np.ndarray, top: np.float32, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Ids that pass the filters, ascending, and their weights. The largest logit always does; equal ones rank by id."""
    if 0 < sampling.top_k < len(logits):
        ids = _largest(logits, sampling.top_k)
        weights = _weights(logits[ids], top, sampling).astype(np.float64)
        total = weights.sum()
    else:
        everything = _weights(logits, top, sampling)
        total = everything.sum(dtype=np.float64)
        # All ids lighter than this weigh less than what top_p leaves out, so none of them is needed.
        ids = np.flatnonzero(everything >= max((1.0 - sampling.top_p) * total / len(logits), sampling.min_p))
        weights = everything[ids].astype(np.float64)
    if sampling.top_p < 1.0:
        order = _ranking(logits[ids])
        mass = np.cumsum(weights[order])
        # The shortest prefix that reaches the mass: an id stays while the mass before it falls short.
        stays = order[np.concatenate(([0.0], mass[:-1])) < sampling.top_p * total]
        stays.sort()
        ids, weights = ids[stays], weights[stays]
    heavy = weights >= sampling.min_p
    return ids[heavy], weights[heavy]


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
