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
    values = np.array(logits, np.float64)
    top = int(np.argmax(values))
    if np.isnan(values[top]):
        values[np.isnan(values)] = -np.inf
        top = int(np.argmax(values))
    if sampling.temperature == 0.0 or values[top] == -np.inf:
        return top
    if values[top] == np.inf:  # outweighs every finite logit; differences to it would be NaN
        values = np.where(values == np.inf, 0.0, -np.inf)
    else:
        values -= values[top]
    with np.errstate(over="ignore"):
        weights = np.exp(values / sampling.temperature)
    ids = _kept(values, weights, sampling)
    cumulative = np.cumsum(weights if ids is None else weights[ids])
    place = int(np.searchsorted(cumulative, uniform(seed, position) * cumulative[-1], side="right"))
    if place == len(cumulative):  # the product was rounded up to the whole: the last id that weighs anything
        place = int(np.searchsorted(cumulative, cumulative[-1]))
    return place if ids is None else int(ids[place])


def _kept(values: np.ndarray, weights: np.ndarray, sampling: Sampling) -> np.ndarray | None:
    """Ids that pass the filters, ascending, or None for all. The largest logit always does; equal ones rank by id."""
    ids = None
    if 0 < sampling.top_k < len(values):
        floor = np.partition(values, -sampling.top_k)[-sampling.top_k]
        ids = _ranked(values, np.flatnonzero(values >= floor))[: sampling.top_k]
    if sampling.top_p < 1.0:
        total = weights.sum() if ids is None else weights[ids].sum()
        if ids is None:
            # All ids lighter than this weigh less than what top_p leaves out, so none of them is needed.
            ids = np.flatnonzero(weights >= (1.0 - sampling.top_p) * total / len(weights))
        ids = _ranked(values, ids)
        mass = np.cumsum(weights[ids])
        # The shortest prefix that reaches the mass: an id stays while the mass before it falls short.
        ids = ids[np.concatenate(([0.0], mass[:-1])) < sampling.top_p * total]
    if sampling.min_p > 0.0:
        ids = np.flatnonzero(weights >= sampling.min_p) if ids is None else ids[weights[ids] >= sampling.min_p]
    return ids if ids is None else np.sort(ids)


def _ranked(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """`ids`, ascending, by falling value; equal values stay in order."""
    return ids[np.argsort(-values[ids], kind="stable")]


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
