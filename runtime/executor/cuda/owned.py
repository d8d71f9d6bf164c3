"""Driver objects that end with a stack: what was made is undone, last first, whatever fails in between.

Knows nothing of what they are for.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from tandem.driver import Driver


@dataclass(frozen=True, slots=True)
class Pinned:
    """Host memory at `address` that the device copies from and to; `array` uint8 [nbytes] is a view of it."""

    address: int
    array: np.ndarray


def context(stack: ExitStack, driver: Driver, device: int) -> int:
    """The device's primary context, current on the calling thread."""
    made = driver.retain(device)
    stack.callback(driver.release, device)
    driver.set_current(made)
    return made


def memory(stack: ExitStack, driver: Driver, nbytes: int) -> int:
    """The address of `nbytes` of device memory."""
    address = driver.alloc(nbytes)
    stack.callback(driver.free, address)
    return address


def pinned(stack: ExitStack, driver: Driver, nbytes: int) -> Pinned:
    address = driver.host_alloc(nbytes)
    stack.callback(driver.host_free, address)
    return Pinned(address, np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)))


def stream(stack: ExitStack, driver: Driver) -> int:
    """A stream that is empty when it ends."""
    made = driver.stream()
    stack.callback(driver.stream_destroy, made)
    stack.callback(driver.synchronize, made)
    return made
