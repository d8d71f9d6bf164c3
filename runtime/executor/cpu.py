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
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import Kind
from tandem.runtime.executor import bounds
from tandem.runtime.executor.base import Moves, Outcome, Rows
from tandem.runtime.executor.library import LAUNCH, Library

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


def _check_regions(program: Program, layout: IoLayout, weight_bytes: int) -> None:
    """Raises BundleCorrupt where a program was made for other memory than there is."""
    page_bytes = layout.geometry.page_bytes
    for region in program.regions:
        most = {"weights": weight_bytes, "kv": page_bytes, "io": layout.nbytes, "scratch": region.nbytes}
        held = most.get(region.name, 0)
        if region.nbytes > held or (region.name == "io" and region.nbytes != held):
            raise BundleCorrupt(
                f"a program wants {region.nbytes} bytes of {region.name}, not {held}; rebuild the bundle"
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


class CpuExecutor:
    """Implements `tandem.runtime.executor.base.Executor` over host memory.

    `num_pages` sizes the KV pool. `poison` fills scratch and KV with NaNs, so that a read of anything never
    written shows.
    """

    def __init__(self, image: Image, *, num_pages: int, poison: bool = False) -> None:
        self.geometry, self.num_pages = image.geometry, num_pages
        layout = IoLayout(image.geometry)
        scratch = max((r.nbytes for p in image.programs.values() for r in p.regions if r.name == "scratch"), default=0)
        _check_memory(scratch + layout.nbytes + num_pages * image.geometry.page_bytes)
        for program in image.programs.values():
            _check_regions(program, layout, image.weights.nbytes)
            bounds.check(program, [image.library.signature(k.symbol) for k in program.kernels], image.geometry)
        self._library = image.library
        self._regions = {
            "weights": image.weights,
            "kv": aligned(num_pages * image.geometry.page_bytes, poison=poison),
            "io": aligned(layout.nbytes),
            "scratch": aligned(max(scratch, ALIGNMENT), poison=poison),
        }
        self._io = layout.views(self._regions["io"])
        self._bound = {kind: Bound(program, image.library, self._regions) for kind, program in image.programs.items()}

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        io, num_rows, num_outputs = self._io, len(rows.token), len(rows.output_row)
        io["counts"][:3] = num_rows, num_outputs, 0
        for name in ("token", "position", "lane", "slot", "prefix"):
            io[name][:num_rows] = getattr(rows, name)
        if rows.ancestor is not None:
            io["ancestor"][:num_rows] = rows.ancestor
        io["output_row"][:num_outputs] = rows.output_row
        self._set_tables(rows.block_table)
        ms = self._walk(kind)
        return Outcome(io["argmax"][:num_outputs].copy(), io["gap"][:num_outputs].copy(), ms)

    def commit(self, moves: Moves) -> float:
        io, count = self._io, len(moves.lane)
        io["counts"][:3] = 0, 0, count
        io["move_lane"][:count] = moves.lane
        io["move_source"][:count] = moves.source
        io["move_target"][:count] = moves.target
        self._set_tables(moves.block_table)
        return self._walk(Kind.COMMIT)

    def logits(self, output: int) -> np.ndarray:
        return self._io["logits"][output]

    def kv(self, block_table: Sequence[int], length: int) -> bytes:
        g = self.geometry
        held = np.asarray(block_table[: -(-length // g.page_tokens)], np.intp)
        pages = self._regions["kv"].reshape(self.num_pages, -1)[held]
        parts, offset = [], 0
        for groups, size in g.kv_planes * g.num_layers:
            end = offset + groups * g.page_tokens * size
            plane = pages[:, offset:end].reshape(len(pages), groups, g.page_tokens, size)
            parts.append(plane.transpose(0, 2, 1, 3).reshape(-1, groups * size)[:length].tobytes())
            offset = end
        return b"".join(parts)

    def _set_tables(self, block_table: np.ndarray) -> None:
        lanes, blocks = block_table.shape
        self._io["block_table"][:lanes, :blocks] = block_table

    def _walk(self, kind: Kind) -> float:
        start = time.perf_counter()
        self._library.run(self._bound[kind].launches)
        return (time.perf_counter() - start) * 1e3

    def close(self) -> None:
        self._bound.clear()
        self._library.close()
