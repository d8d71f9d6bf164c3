"""Which ids may come next, as bits, and what they leave of a row of logits.

Letters: V vocabulary. Knows nothing of grammars.
"""

from __future__ import annotations

import numpy as np

_BLOCKED = np.float32(-np.inf)


class Mask:
    """Bits of ids, the lowest first; `bits` uint8 [V / 8 or more] may be written anew at any time."""

    def __init__(self, vocab_size: int) -> None:
        self.words = np.zeros(-(-vocab_size // 32), np.uint32)
        self.bits = self.words.view(np.uint8)

    def allows(self, token: int) -> bool:
        return bool(self.bits[token >> 3] >> (token & 7) & 1)

    def applied(self, logits: np.ndarray) -> np.ndarray | None:
        """New logits fp32 [V], minus infinity where an id may not come; None where none may.

        Where no id that may come has a logit to be drawn by, all of them get the same.
        """
        legal = np.unpackbits(self.bits, count=len(logits), bitorder="little").view(np.bool_)
        count = np.count_nonzero(legal)
        if not count:
            return None
        if 2 * count < len(logits):  # an index of the fewer is several times as fast as a choice at every id
            ids = np.flatnonzero(legal)
            changed = np.full(len(logits), _BLOCKED)
            changed[ids] = logits[ids]
        else:
            changed = logits.astype(np.float32)
            changed[np.flatnonzero(~legal)] = _BLOCKED
        top = changed.max()
        if (top == _BLOCKED or np.isnan(top)) and not (changed > _BLOCKED).any():
            changed = np.where(legal, np.float32(0), _BLOCKED)
        return changed
