"""What an id weighs in a draw: exp((logit - largest) / temperature) as an integer, a specified function of its own.

A library's exp is another function on every machine: numpy's differs between instruction sets, a GPU's from both. This
one is fp32 additions, subtractions and multiplications in a fixed order, each rounded to nearest, and one conversion to
an integer, so that equal logits weigh the same wherever they lie; and sums of integers have no order. docs/sampling.md
says it for other implementations. Knows nothing of filters and noise.
"""

from __future__ import annotations

import numpy as np

UNIT = 40
"""The largest logit weighs 2^UNIT; what is 28 temperatures below it weighs nothing. 2^23 ids sum up below 2^63."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-30, 1e30
"""Temperatures beyond them are as good as 0 and infinity, and fp32 does not hold them."""
CHUNK = 32768
"""Ids whose weights are worked out at once: what they need fits a core's own cache."""

_LOG2E = 1.4426950408889634
_FLOOR = np.float32(-100)
"""Powers are cut off here, far below what weighs nothing, so that their integers fit an exponent."""
_SHIFT = np.array(1.5 * 2**23, np.float32)
"""Added to a number of less than 2^22 and taken off again, it leaves the nearest integer, the even one of two."""
_POLYNOMIAL = tuple(
    np.array(2**UNIT * float.fromhex(coefficient), np.float32)
    for coefficient in ("0x1.5bba14p-10", "0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p+0")
)
"""2^f for f of -1/2 to 1/2, within 2e-7 of it and exactly 1 at 0; the highest power first, in units of a weight."""


def scale(temperature: float) -> np.float32:
    """What differences of logits are multiplied with, so that e^(difference / temperature) is a power of 2."""
    return np.float32(_LOG2E / min(max(temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE))


def weigh(logits: np.ndarray, top: np.float32, temperature: float) -> np.ndarray:
    """Weights int64 [V], 0 to 2^UNIT, of logits fp32 [V] of which `top` is the largest, or an upper bound; none is NaN,
    and `top` is finite. `temperature` is above 0."""
    factor = scale(temperature)
    weights = np.empty(len(logits), np.int64)
    size = min(CHUNK, len(logits))
    power, whole, value = (np.empty(size, np.float32) for _ in range(3))
    with np.errstate(over="ignore"):
        for begin in range(0, len(logits), CHUNK):
            part = logits[begin : begin + CHUNK]
            n = len(part)
            x, w, v = power[:n], whole[:n], value[:n]
            np.subtract(part, top, out=x)
            np.multiply(x, factor, out=x)
            if x.min() < _FLOOR:
                np.maximum(x, _FLOOR, out=x)
            np.add(x, _SHIFT, out=w)
            np.subtract(w, _SHIFT, out=v)
            np.subtract(x, v, out=x)
            np.multiply(x, _POLYNOMIAL[0], out=v)
            for coefficient in _POLYNOMIAL[1:-1]:
                np.add(v, coefficient, out=v)
                np.multiply(v, x, out=v)
            np.add(v, _POLYNOMIAL[-1], out=v)
            # The lowest bits of `w` are the integer itself; a step of it is one of the exponent.
            bits = w.view(np.int32)
            np.left_shift(bits, 23, out=bits)
            np.add(v.view(np.int32), bits, out=bits)
            np.copyto(weights[begin : begin + n], w, casting="unsafe")
    return weights
