"""Weights on their way from a file into device memory: readers fill pinned buffers while others are copied.

Knows nothing of what the file holds: its offsets are the region's.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tandem.driver import Driver
from tandem.errors import BundleCorrupt
from tandem.runtime.executor.cuda import owned

READERS = 8
"""Threads that fill buffers from the page cache."""
CHUNK = 4 << 20
"""Bytes of a copy: larger buffers leave the processor's cache before they are copied, smaller ones make more calls."""
BUFFERS = 2
"""Of a reader: one to fill while others are copied."""


@dataclass(frozen=True, slots=True)
class _Copy:
    driver: Driver
    context: int
    path: Path
    address: int
    nbytes: int
    file: int
    stop: threading.Event

    def read(self, first: int, step: int) -> None:
        """Brings over the chunks `first`, `first + step`, and so on."""
        try:
            with ExitStack() as stack:
                self._read(stack, range(first * CHUNK, self.nbytes, step * CHUNK))
        except BaseException:
            self.stop.set()
            raise

    def _read(self, stack: ExitStack, offsets: range) -> None:
        self.driver.set_current(self.context)
        room = min(CHUNK, self.nbytes)
        buffers = [(owned.pinned(stack, self.driver, room), owned.event(stack, self.driver)) for _ in range(BUFFERS)]
        stream = owned.stream(stack, self.driver)
        for turn, offset in enumerate(offsets):
            if self.stop.is_set():
                return
            buffer, copied = buffers[turn % BUFFERS]
            nbytes = min(CHUNK, self.nbytes - offset)
            if not self.driver.passed(copied):
                self.driver.wait(copied)
            self._fill(buffer.array.data[:nbytes], offset)
            self.driver.to_device(self.address + offset, buffer.address, nbytes, stream)
            self.driver.record(copied, stream)

    def _fill(self, buffer: memoryview, offset: int) -> None:
        while buffer:
            try:
                count = os.preadv(self.file, [buffer], offset)
            except OSError as error:
                raise BundleCorrupt(f"{self.path}: byte {offset} cannot be read ({error}); copy it again") from None
            if not count:
                found = os.fstat(self.file).st_size
                raise BundleCorrupt(f"{self.path}: ends at byte {found} of {self.nbytes}; copy it again")
            buffer, offset = buffer[count:], offset + count


class Weights:
    """A copy in progress of the first `nbytes` of the file `path` to `address` in `context`."""

    def __init__(self, driver: Driver, context: int, path: Path, address: int, nbytes: int) -> None:
        self._began, self._stop = time.perf_counter(), threading.Event()
        self.ms = 0.0
        self._file = os.open(path, os.O_RDONLY)
        readers = max(1, min(READERS, -(-nbytes // CHUNK)))
        self._pool = ThreadPoolExecutor(readers, "weights")
        copy = _Copy(driver, context, path, address, nbytes, self._file, self._stop)
        self._readers: list[Future[None]] = []
        try:
            for i in range(readers):
                self._readers.append(self._pool.submit(copy.read, i, readers))
                self._readers[-1].add_done_callback(self._note)
        except BaseException:  # Ctrl-C, or no more threads
            self.close()
            raise

    def _note(self, _: Future[None]) -> None:
        self.ms = (time.perf_counter() - self._began) * 1e3

    def join(self) -> None:
        """Waits until all of it is there. Raises what the first failing reader raised."""
        for reader in self._readers:
            reader.result()

    def close(self) -> None:
        """Ends the copy, complete or not."""
        self._stop.set()
        self._pool.shutdown()
        os.close(self._file)
