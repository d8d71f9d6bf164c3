"""GB/s of a file in memory on its way to the device, for `bench.gpu.driver_smoke`.

By readers and chunk, beside plain copies of pinned memory: those are the most there is.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

from bench.gpu.driver_case import Case
from tandem.kernels.cuda.copier import build_copier
from tandem.runtime.executor.cuda import owned, weights

TRIED = ((4, 4 << 20), (8, 4 << 20), (12, 1 << 20), (12, 2 << 20), (14, 2 << 20), (16, 4 << 20), (8, 16 << 20))


def measure(case: Case, nbytes: int, folder: Path) -> tuple[float, bool]:
    """The rate of the weights' copy over that of plain copies, and whether each page looked at has arrived."""
    path = folder / f"tandem-smoke-{os.getpid()}"
    try:
        write(path, nbytes)
        copier = weights.Copier(build_copier(path.with_suffix(".so")))
        with ExitStack() as stack:
            address = owned.memory(stack, case.driver, nbytes)
            plain = copy_rate(case, address, nbytes)
            print(f"       plain copies of pinned memory: {plain:.1f} GB/s")
            # What stands in the source comes last and counts.
            for readers, chunk in (*TRIED, (weights.READERS, weights.CHUNK)):
                weights.READERS, weights.CHUNK = readers, chunk
                rates = [rate(case, copier, path, address, nbytes) for _ in range(3)]
                print(f"       {readers} readers of {chunk >> 20} MiB: {median(rates):.1f} GB/s")
            return median(rates) / plain, same(case, path, address, nbytes)
    finally:
        path.unlink(missing_ok=True)
        path.with_suffix(".so").unlink(missing_ok=True)


def write(path: Path, nbytes: int) -> None:
    """Blocks that differ in their first bytes."""
    block = np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8)
    with path.open("wb") as file:
        for i in range(nbytes // block.nbytes):
            block[:8] = np.frombuffer(i.to_bytes(8, "little"), np.uint8)
            file.write(block.data)


def rate(case: Case, copier: weights.Copier, path: Path, address: int, nbytes: int) -> float:
    copy = weights.Weights(case.driver, case.context, copier, path, address, nbytes)
    copy.join()
    taken = copy.ms
    copy.close()
    return nbytes / taken / 1e6


def copy_rate(case: Case, address: int, nbytes: int) -> float:
    with ExitStack() as stack:
        size = 256 << 20
        host = owned.pinned(stack, case.driver, size)
        began = time.perf_counter()
        for offset in range(0, nbytes - size + 1, size):
            case.driver.to_device(address + offset, host.address, size, case.stream)
        case.driver.synchronize(case.stream)
        return nbytes // size * size / (time.perf_counter() - began) / 1e9


def same(case: Case, path: Path, address: int, nbytes: int) -> bool:
    page = 4096
    with path.open("rb") as file:
        for offset in range(0, nbytes - page + 1, 61 * page):
            case.driver.to_host(case.host.address, address + offset, page, case.stream)
            case.driver.synchronize(case.stream)
            if os.pread(file.fileno(), page, offset) != case.host.array[:page].tobytes():
                return False
    return True
