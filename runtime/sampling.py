"""One token from one row of logits: a function of (logits, sampling, seed, position) and of nothing else.

Knows nothing of lanes, drafters or passes, so a seeded text is the same whatever guessed it.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.errors import RequestError
from tandem.runtime.request import Sampling

_U64 = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """The noise of a position: a float64 in [0, 1) with 53 random bits.

    Generator: numpy's `Philox` (Philox4x64-10, Salmon et al. 2011) with key = seed mod 2^64 and counter = position;
    the first 64-bit word it gives, shifted right by 11, times 2^-53. numpy adds 1 to the counter before a block, so
    that word is lane 0 of the block of counter position + 1.
    """
    word = int(np.random.Philox(key=seed & _U64, counter=position).random_raw())
    return (word >> 11) * 2.0**-53


def draw(logits: np.ndarray, sampling: Sampling, seed: int, position: int) -> int:
    """The id at index `position` of a lane, drawn from logits [V].

    Temperature 0 takes the largest logit, the lowest id among equals. Otherwise, in float64: divide by the
    temperature; `top_k`, `top_p`, `min_p` in this order; then the lowest id whose cumulative probability, summed in
    ascending id order, exceeds `uniform(seed, position)` of the whole. NaN logits are never drawn.
    """
    values = np.asarray(logits, np.float64)
    values = np.where(np.isnan(values), -np.inf, values)
    top = int(np.argmax(values))
    if sampling.temperature == 0.0 or values[top] == -np.inf:
        return top
    # An infinite logit outweighs every finite one; differences to it would be NaN.
    values = np.where(values == np.inf, 0.0, -np.inf) if values[top] == np.inf else values - values[top]
    with np.errstate(over="ignore"):
        weights = np.exp(values / sampling.temperature)
    ids = _kept(values, weights, sampling)
    cumulative = np.cumsum(weights[ids])
    place = int(np.searchsorted(cumulative, uniform(seed, position) * cumulative[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def _kept(values: np.ndarray, weights: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Ids that pass the filters, ascending. The largest logit (weight 1) always does; equal ones rank by id."""
    floor = -np.inf
    if 0 < sampling.top_k < len(values):
        floor = np.partition(values, -sampling.top_k)[-sampling.top_k]  # spares a full sort
    ranked = np.flatnonzero((weights > 0) & (values >= floor))
    if sampling.top_k > 0 or sampling.top_p < 1.0:
        ranked = ranked[np.argsort(-values[ranked], kind="stable")]
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1.0:
        cumulative = np.cumsum(weights[ranked])
        # The shortest prefix that reaches the mass: an id stays while the mass before it falls short.
        before = np.concatenate(([0.0], cumulative[:-1]))
        ranked = ranked[before < sampling.top_p * cumulative[-1]]
    if sampling.min_p > 0.0:
        ranked = ranked[weights[ranked] >= sampling.min_p]
    return np.sort(ranked)


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
