"""Seeds of the choices of one request: the same request gives the same choices, each with noise of its own.

Knows nothing of what noise is used for.
"""

from __future__ import annotations

_U64 = (1 << 64) - 1


def choice_seed(seed: int | None, number: int) -> int | None:
    """The seed of choice `number` of a request: choice 0 has the request's own, and no seed gives none.

    The others have what SplitMix64 (Steele, Lea and Flood 2014) gives as its `number`th value, from 1 on, when it
    begins at `seed` mod 2^64.
    """
    if seed is None or number == 0:
        return seed
    z = (seed + number * 0x9E3779B97F4A7C15) & _U64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _U64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _U64
    return z ^ (z >> 31)
