"""The CPU executor: a bundle's programs bound to memory and walked by the bundle's own C++ library.

Knows no model: what a pass does stands in the programs. No Python runs between launches.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.device import this_machine
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import MAX_TREE_ROWS, Kind
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
        self.address, self.count = self.launches.ctypes.data, len(self.launches)


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
        # Between two passes the caches hold weights, not Python: what a round touches is what it costs. So rows are
        # written through plain views, and block tables only when they have changed.
        views = {name: memoryview(view.reshape(-1).data) for name, view in self._io.items()}
        self._counts, self._output_row, self._ancestor = views["counts"], views["output_row"], views["ancestor"]
        self._row_views = tuple(views[name] for name in ("token", "position", "lane", "slot", "prefix"))
        self._move_views = tuple(views[name] for name in ("move_lane", "move_source", "move_target"))
        self._argmax, self._gap = views["argmax"], views["gap"]
        self._table: np.ndarray | None = None
        self._bound = {kind: Bound(program, image.library, self._regions) for kind, program in image.programs.items()}

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        num_outputs = len(rows.output_row)
        self._set_counts(len(rows.token), num_outputs, 0)
        for view, values in zip(
            self._row_views, (rows.token, rows.position, rows.lane, rows.slot, rows.prefix), strict=True
        ):
            _put(view, values)
        _put(self._output_row, rows.output_row)
        for row, line in enumerate(rows.ancestor or ()):
            _put(self._ancestor[row * MAX_TREE_ROWS : (row + 1) * MAX_TREE_ROWS], line)
        self._set_table(rows.block_table)
        ms = self._walk(kind)
        return Outcome(_take(self._argmax, num_outputs), _take(self._gap, num_outputs), ms)

    def commit(self, moves: Moves) -> float:
        self._set_counts(0, 0, len(moves.lane))
        for view, values in zip(self._move_views, (moves.lane, moves.source, moves.target), strict=True):
            _put(view, values)
        self._set_table(moves.block_table)
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

    def _set_counts(self, rows: int, outputs: int, moves: int) -> None:
        counts = self._counts
        counts[0], counts[1], counts[2] = rows, outputs, moves

    def _set_table(self, block_table: np.ndarray) -> None:
        if block_table is not self._table:
            lanes, blocks = block_table.shape
            self._io["block_table"][:lanes, :blocks] = block_table
            self._table = block_table

    def _walk(self, kind: Kind) -> float:
        bound = self._bound[kind]
        start = time.perf_counter()
        self._library.run(bound.address, bound.count)
        return (time.perf_counter() - start) * 1e3

    def close(self) -> None:
        self._bound.clear()
        self._library.close()


def _put(view: memoryview, values: Sequence[int]) -> None:
    """Writes int32 `values` to the start of `view`; ValueError when they are too many."""
    if len(values) == 1:
        view[0] = values[0]
    else:
        view[: len(values)] = array("i", values)


def _take(view: memoryview, count: int) -> list[Any]:
    """The first `count` values of `view`."""
    return [view[0]] if count == 1 else view[:count].tolist()
