"""Lanes' recurrent states on their way out of the device and back: one part is copied while another is moved on.

Knows nothing of layers: a slot is so many bytes.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from tandem.driver import Driver
from tandem.runtime.executor.cuda import owned

CHUNK = 4 << 20
"""Bytes of a part."""


class Slots:
    """Slots of `nbytes` each from the device's `address` on.

    Two pinned buffers of a part and a stream of its own end with `stack`. A call returns when all is copied; no pass
    may run meanwhile.
    """

    def __init__(self, stack: ExitStack, driver: Driver, address: int, nbytes: int) -> None:
        self._driver, self._address, self._nbytes = driver, address, nbytes
        self._buffers = [owned.pinned(stack, driver, min(CHUNK, nbytes)) for _ in range(2)]
        self._stream = owned.stream(stack, driver)
        self._parts = [(first, min(CHUNK, nbytes - first)) for first in range(0, nbytes, CHUNK)]

    def read(self, slot: int) -> np.ndarray:
        """A copy of a slot, uint8 [nbytes]."""
        state = np.empty(self._nbytes, np.uint8)
        for turn in range(len(self._parts) + 1):
            self._driver.synchronize(self._stream)
            if turn < len(self._parts):
                first, size = self._parts[turn]
                self._driver.to_host(self._buffers[turn % 2].address, self._place(slot) + first, size, self._stream)
            if turn:
                first, size = self._parts[turn - 1]
                state[first : first + size] = self._buffers[(turn - 1) % 2].array[:size]
        return state

    def write(self, slot: int, state: np.ndarray) -> None:
        """Makes a slot hold `state`, uint8 [nbytes]."""
        for turn, (first, size) in enumerate(self._parts):
            buffer = self._buffers[turn % 2]
            buffer.array[:size] = state[first : first + size]
            self._driver.synchronize(self._stream)  # of the other buffer
            self._driver.to_device(self._place(slot) + first, buffer.address, size, self._stream)
        self._driver.synchronize(self._stream)

    def _place(self, slot: int) -> int:
        return self._address + slot * self._nbytes
