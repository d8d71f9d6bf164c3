"""The noise of a draw: one 64-bit word for each (seed, position), by a counter-based generator (docs/sampling.md).

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), of which numpy's `Philox` and
Random123 are other implementations. Integers alone, so it is the same on every device. Knows nothing of logits.
"""

from __future__ import annotations

_U64 = (1 << 64) - 1
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_BUMPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_ROUNDS = 10


def word(seed: int, position: int) -> int:
    """The noise of the token at index `position` of a text: any of 2^64 integers, all equally likely.

    Word 0 of the block with key (seed mod 2^64, 0) and counter (position + 1, 0, 0, 0): the first that numpy's
    `Philox(key=seed, counter=position)` gives, which adds 1 before a block.
    """
    a, b, c, d = position + 1, 0, 0, 0
    key, other = seed & _U64, 0
    for _ in range(_ROUNDS):
        x, y = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (y >> 64) ^ b ^ key, y & _U64, (x >> 64) ^ d ^ other, x & _U64
        key, other = (key + _BUMPS[0]) & _U64, (other + _BUMPS[1]) & _U64
    return a
