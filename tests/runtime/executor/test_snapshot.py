"""What a snapshot has to be before an executor takes it."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.errors import BundleMismatch, UsageError
from tandem.runtime.executor.snapshot import Snapshot, require_slot

STATE = np.arange(16, dtype=np.uint8)


def test_what_save_gave_is_taken() -> None:
    Snapshot("ab" * 32, 7, STATE).require("ab" * 32, 16)


@pytest.mark.parametrize(("bundle", "nbytes"), [("cd" * 32, 16), ("ab" * 32, 20)])
def test_another_bundles(bundle: str, nbytes: int) -> None:
    with pytest.raises(BundleMismatch, match="prefill the text again"):
        Snapshot("ab" * 32, 7, STATE).require(bundle, nbytes)


@pytest.mark.parametrize("state", [STATE.view(np.int8), STATE.view(np.float32), STATE.reshape(4, 4)])
def test_as_many_bytes_in_another_form(state: np.ndarray) -> None:
    with pytest.raises(UsageError, match="uint8"):
        Snapshot("ab" * 32, 7, state).require("ab" * 32, 16)


@pytest.mark.parametrize(("slot", "num_slots", "said"), [(3, 3, "0 to 2"), (-1, 3, "0 to 2"), (0, 0, "no recurrent")])
def test_slots(slot: int, num_slots: int, said: str) -> None:
    require_slot(2, 3)
    with pytest.raises(UsageError, match=said):
        require_slot(slot, num_slots)
