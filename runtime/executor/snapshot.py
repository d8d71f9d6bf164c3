"""A lane's recurrent state at one position, taken out of an executor and put back into it or into one like it.

KV is not part of it: that lies in pages, which others may share. Knows nothing of layers or devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tandem.errors import BundleMismatch, UsageError


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the recurrent layers of the bundle `bundle` kept of a text's first `position` tokens: `state`, uint8.

    Since chunks move no bit, whoever goes on from here gets what a lane that was never interrupted gets.
    """

    bundle: str
    position: int
    state: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.state.nbytes

    def require(self, bundle: str, nbytes: int) -> None:
        """Raises BundleMismatch unless it was taken from `bundle`, whose slots have `nbytes` bytes; UsageError for a
        `state` that is no such row of bytes."""
        if self.state.dtype != np.uint8 or self.state.ndim != 1:
            found = f"{self.state.dtype} of shape {self.state.shape}"
            raise UsageError(f"a snapshot's state is {found}; give the row of uint8 that `save` gave")
        if self.bundle != bundle or self.nbytes != nbytes:
            raise BundleMismatch(
                f"a snapshot of {self.nbytes} bytes of bundle {_short(self.bundle)}, slots here are of {nbytes} bytes "
                f"of bundle {_short(bundle)}; a state is of no use to another bundle, prefill the text again"
            )


def require_slot(slot: int, num_slots: int) -> None:
    """Raises UsageError unless `slot` is one of an executor's `num_slots`: a number below 0 counts from no end."""
    if not num_slots:
        raise UsageError(
            "this model has no recurrent layers, so there is no state to save or restore: KV is all it keeps"
        )
    if not 0 <= slot < num_slots:
        raise UsageError(f"there is no state slot {slot}; this executor has 0 to {num_slots - 1}, ask for one of them")


def _short(bundle: str) -> str:
    return bundle[:12] or "(not sealed)"
