"""Weights on their way from a file into device memory, by the bundle's own small library: no reader waits for Python.

Knows nothing of what the file holds: its offsets are the region's.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_double, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, CapacityError

ABI = 1
READERS = 12
"""Threads that fill buffers: from the page cache at 52 GB/s, where plain copies of pinned memory make 55."""
CHUNK = 4 << 20
"""Bytes of a copy: larger buffers leave the processor's cache before they are copied, smaller ones make more calls."""
BUFFERS = 2
"""Of a reader: one to fill while the other is copied."""
PATIENCE_S = 0.1
"""Between two looks at whether somebody wants to end this process."""

CALLS = (
    *("cuCtxSetCurrent", "cuMemHostAlloc", "cuMemFreeHost", "cuStreamCreate", "cuStreamDestroy_v2"),
    *("cuStreamSynchronize", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventSynchronize"),
    "cuMemcpyHtoDAsync_v2",
)
"""What the library calls, in the order of its `Driver`."""
NONE, READ, SHORT, THREADS = -1, -2, -3, -4
"""Its `Fault`; numbers from 0 on are calls of CALLS."""


class _Job(ctypes.Structure):
    _fields_ = (
        *(("context", c_void_p), ("address", c_uint64), ("nbytes", c_int64), ("chunk", c_int64)),
        *(("file", c_int32), ("readers", c_int32), ("buffers", c_int32)),
    )


class _Found(ctypes.Structure):
    _fields_ = (("fault", c_int32), ("code", c_int32), ("offset", c_int64), ("ms", c_double))


class Copier:
    """The library at `path`. BundleCorrupt where it is none of this machine, BundleMismatch for another version."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            library.tdm_copy_abi.restype = c_int64
            found = library.tdm_copy_abi()
        except (OSError, AttributeError) as error:
            raise BundleCorrupt(f"{path}: brings no weights to a GPU ({error}); compile the bundle again") from None
        if found != ABI:
            raise BundleMismatch(f"{path}: version {found}, this runtime speaks {ABI}; compile the bundle again")
        self.start, self.wait, self.end = library.tdm_copy_start, library.tdm_copy_wait, library.tdm_copy_end
        self.start.restype, self.start.argtypes = c_void_p, (c_void_p, c_void_p)
        self.wait.restype, self.wait.argtypes = c_int32, (c_void_p, c_double, c_void_p)
        self.end.restype, self.end.argtypes = None, (c_void_p,)


class Weights:
    """A copy in progress of the first `nbytes` of the file `path` to `address` in `context`."""

    def __init__(self, driver: Driver, context: int, copier: Copier, path: Path, address: int, nbytes: int) -> None:
        self._driver, self._copier, self._path, self._nbytes = driver, copier, path, nbytes
        self.ms = 0.0
        self._calls = (c_void_p * len(CALLS))(*map(driver.address, CALLS))
        self._file = os.open(path, os.O_RDONLY)
        readers = max(1, min(READERS, -(-nbytes // CHUNK)))
        job = _Job(context, address, nbytes, CHUNK, self._file, readers, BUFFERS)
        self._transfer: int | None = copier.start(self._calls, ctypes.byref(job))

    def join(self) -> None:
        """Waits until all of it is there. Raises BundleCorrupt or DeviceError, what a reader failed at first."""
        assert self._transfer is not None, "closed"
        found = _Found()
        while not self._copier.wait(self._transfer, PATIENCE_S, ctypes.byref(found)):
            pass
        self.ms = found.ms
        if found.fault == READ:
            reason = os.strerror(found.code)
            raise BundleCorrupt(f"{self._path}: byte {found.offset} cannot be read ({reason}); copy it again")
        if found.fault == SHORT:
            size = os.fstat(self._file).st_size
            raise BundleCorrupt(f"{self._path}: ends at byte {size} of {self._nbytes}; copy it again")
        if found.fault == THREADS:
            reason = os.strerror(found.code)
            raise CapacityError(f"this system gives no {READERS} threads ({reason}); look at ulimit -u and at memory")
        if found.fault != NONE:
            raise self._driver.error(CALLS[found.fault], found.code)

    def close(self) -> None:
        """Ends the copy, complete or not."""
        if self._transfer is not None:
            self._copier.end(self._transfer)
            self._transfer = None
            os.close(self._file)
