"""The bundle's C++ library behind ctypes: kernel addresses and a thread team that walks launch lists.

Knows nothing of programs' meaning; calls release the GIL.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from tandem.errors import BundleCorrupt, BundleMismatch, CapacityError

ABI = 1
KERNEL, SIGNATURE = "tdm_", "tdm_sig_"
"""How a kernel's symbol begins, and that of the text that names its parameters."""
LAUNCH = np.dtype([("kernel", "<u8"), ("args", "<u8"), ("wait", "<u8")])
"""tdm::Launch: a kernel's address, its argument words, whether a barrier stands before it."""


class Library:
    """A loaded library with a team of `threads` threads, the caller's among them."""

    def __init__(self, path: Path, threads: int) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
            self._dll.tdm_abi.restype = ctypes.c_int64
            found = self._dll.tdm_abi()
        except (OSError, AttributeError) as error:
            raise BundleCorrupt(f"{path}: not a kernel library of this machine ({error}); rebuild the bundle") from None
        if found != ABI:
            raise BundleMismatch(f"{path}: kernel ABI {found}, this runtime speaks {ABI}; rebuild the bundle")
        self._path = path
        self._dll.tdm_team_new.restype = ctypes.c_void_p
        self._dll.tdm_team_new.argtypes = [ctypes.c_int64]
        self._dll.tdm_team_free.argtypes = [ctypes.c_void_p]
        self._dll.tdm_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        self._run = self._dll.tdm_run
        self._team: int | None = self._dll.tdm_team_new(threads)
        if self._team is None:
            raise CapacityError(f"this system gives no {threads} threads (ulimit -u, memory); ask for fewer")

    def address(self, symbol: str) -> int:
        """Where a kernel lies in memory."""
        self.signature(symbol)
        return ctypes.cast(self._dll[symbol], ctypes.c_void_p).value or 0

    def signature(self, symbol: str) -> tuple[str, ...]:
        """A kernel's parameters in order, each a word such as "<x": see `kernels/cpu/tandem.h`.

        BundleCorrupt for a symbol that is no kernel, though the process may hold a function of that name.
        """
        try:
            if not symbol.startswith(KERNEL):
                raise ValueError(symbol)
            text = ctypes.c_char.in_dll(self._dll, f"{SIGNATURE}{symbol.removeprefix(KERNEL)}")
            _ = self._dll[symbol]
        except (ValueError, AttributeError):
            raise BundleCorrupt(f"{self._path}: holds no kernel {symbol}; rebuild the bundle") from None
        return tuple(ctypes.string_at(ctypes.addressof(text)).decode().split())

    def run(self, launches: int, count: int) -> None:
        """Runs the `count` launches (dtype LAUNCH) at the address `launches` to the end on the team."""
        self._run(self._team, launches, count)

    def close(self) -> None:
        if self._team is not None:
            self._dll.tdm_team_free(self._team)
            self._team = None
