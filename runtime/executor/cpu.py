"""The CPU executor: a bundle's programs bound to memory and walked by the bundle's own C++ library.

Knows no model: what a pass does stands in the programs. No Python runs between launches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.device import this_machine
from tandem.errors import BundleMismatch
from tandem.keys import Kind
from tandem.runtime.executor import bounds
from tandem.runtime.executor.base import Entry, Moves, Outcome, Rows
from tandem.runtime.executor.inbox import Inbox
from tandem.runtime.executor.library import LAUNCH, Library
from tandem.runtime.executor.regions import check_regions, kv_bytes, scratch_bytes

ALIGNMENT = 64
POISON = 0xFF
"""Bytes that read as NaN in fp32 and bf16 alike."""


@dataclass(frozen=True, slots=True)
class Image:
    """What the executor takes from an opened bundle; `weights` is the whole file, uint8."""

    geometry: Geometry
    weights: np.ndarray
    library: Library
    programs: dict[Kind, Program]


def aligned(nbytes: int, *, poison: bool = False) -> np.ndarray:
    """uint8 [nbytes], at least one, at a 64-byte boundary: zeros, or POISON in every byte."""
    block = np.zeros(nbytes + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    region = block[start : start + nbytes]
    if poison:
        region[:] = POISON
    return region


def _check_memory(wanted: int) -> None:
    memory = this_machine().memory
    if wanted > memory:
        raise BundleMismatch(
            f"scratch, io and KV take {wanted} bytes and this machine has {memory}; ask for a shorter context"
        )


class Bound:
    """A program with its pointers filled in. The arrays stay alive as long as it does."""

    def __init__(self, program: Program, library: Library, regions: dict[str, np.ndarray]) -> None:
        self._words = program.relocate({name: region.ctypes.data for name, region in regions.items()})
        kernels = np.array([library.address(k.symbol) for k in program.kernels], np.uint64)
        self.launches = np.zeros(len(program.launches), LAUNCH)
        self.launches["kernel"] = kernels[program.launches["kernel"]]
        self.launches["args"] = self._words.ctypes.data + 8 * program.launches["first_param"].astype(np.uint64)
        self.launches["wait"] = program.launches["wait"]
        self.address, self.count = self.launches.ctypes.data, len(self.launches)


class CpuExecutor:
    """Implements `tandem.runtime.executor.base.Executor` over host memory.

    `num_pages` sizes the KV pool. `poison` fills scratch and KV with NaNs, so that a read of anything never
    written shows.
    """

    def __init__(self, image: Image, *, num_pages: int, poison: bool = False) -> None:
        self.geometry, self.num_pages = image.geometry, num_pages
        self.entries: Sequence[Entry] = ()
        layout = IoLayout(image.geometry)
        scratch = scratch_bytes(list(image.programs.values()))
        _check_memory(scratch + layout.nbytes + num_pages * image.geometry.page_bytes)
        for program in image.programs.values():
            check_regions(program, layout, image.weights.nbytes)
            bounds.check(program, [image.library.signature(k.symbol) for k in program.kernels], image.geometry)
        self._library = image.library
        self._regions = {
            "weights": image.weights,
            "kv": aligned(num_pages * image.geometry.page_bytes, poison=poison),
            "io": aligned(layout.nbytes),
            "scratch": aligned(max(scratch, ALIGNMENT), poison=poison),
        }
        self._io = layout.views(self._regions["io"])
        self._inbox = Inbox(self._io)
        self._bound = {kind: Bound(program, image.library, self._regions) for kind, program in image.programs.items()}

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        self._inbox.set_rows(rows)
        self._inbox.set_table(rows.block_table)
        ms = self._walk(kind)
        return self._inbox.outcome(len(rows.output_row), ms)

    def commit(self, moves: Moves) -> float:
        self._inbox.set_moves(moves)
        self._inbox.set_table(moves.block_table)
        return self._walk(Kind.COMMIT)

    def logits(self, output: int) -> np.ndarray:
        return self._io["logits"][output]

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        held = np.asarray(block_table[: -(-length // self.geometry.page_tokens)], np.intp)
        return kv_bytes(self._regions["kv"].reshape(self.num_pages, -1)[held], self.geometry, length)

    def _walk(self, kind: Kind) -> float:
        bound = self._bound[kind]
        start = time.perf_counter()
        self._library.run(bound.address, bound.count)
        return (time.perf_counter() - start) * 1e3

    def close(self) -> None:
        self._bound.clear()
        self._library.close()
