"""Draft blocks side by side in one pass, for kernel tests: where their rows stand and which of them are slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Blocks:
    """Per row position and prefix; `output_row` are all rows but the anchors. All int32."""

    position: np.ndarray
    prefix: np.ndarray
    output_row: np.ndarray

    @classmethod
    def of(cls, anchors: Sequence[int], size: int) -> Blocks:
        """Blocks of `size` rows behind anchors at the given positions."""
        within = np.tile(np.arange(size, dtype=np.int32), len(anchors))
        prefix = np.repeat(np.array(anchors, np.int32), size)
        return cls(prefix + within, prefix, np.flatnonzero(within).astype(np.int32))
