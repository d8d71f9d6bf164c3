"""Memory that the C library keeps for later."""

from __future__ import annotations

import contextlib
import ctypes


def trim() -> None:
    """Gives back what is free, where the C library offers that: big work that is done leaves as much as it took."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
