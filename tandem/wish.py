"""How a draw on a device is spelt: one row of int64 for each output row of a pass, reals by their bits in fp32.

Shared by who writes such rows and by the kernels that read them; docs/sampling.md says what the numbers mean.
"""

from __future__ import annotations

from enum import IntEnum

WISH = 16
"""Columns of a row; those that `Wish` does not name are 0."""
ID_BITS = 23
"""Of an id: docs/sampling.md bounds a vocabulary by as many."""
FRESH = 64
"""Ids that a pass may bring into what a device keeps of texts: more than one can commit."""


class Wish(IntEnum):
    """A column of a row. All but LANE stand for nothing where that is -1."""

    LANE = 0  # whose text it is, -1 where no draw is wished
    SCALE = 1  # fp32 s of docs/sampling.md, 0 for the largest logit alone: then the four below are 0
    TOP_K = 2  # 0 for off
    TOP_P = 3  # Q of docs/sampling.md modulo 2^64, 0 for off
    MIN_P = 4  # the least weight that stays
    SEED = 5  # modulo 2^64
    POSITION = 6  # index of the token drawn
    COUNTED = 7  # 1 where ids of the text lose by the three below
    REPETITION = 8
    FREQUENCY = 9
    PRESENCE = 10
