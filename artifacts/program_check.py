"""Whether a program's tables hold: every index inside its table, every span inside its region, grids a GPU takes.

Knows nothing of files, nor of what kernels do: `tandem.runtime.executor.bounds` knows that of the CPU's.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tandem.artifacts.program_tables import CONSTANT, FULL, PROGRAMMATIC, REGIONS, Kernel, Program, Region

ALIGNMENTS: Final = (1, 2, 4, 8, 16, 32, 64)
PARAM_SIZES: Final = (1, 2, 4, 8)
POINTER: Final = 8
"""Bytes of an argument that points somewhere."""
MAX_GRID: Final = ((1 << 31) - 1, 65535, 65535)
MAX_BLOCK: Final = (1024, 1024, 64)
MAX_THREADS: Final = 1024
"""A grid's blocks, a block's threads by axis, and in all: CUDA C++ Programming Guide, table of compute capabilities."""
MAX_SHARED: Final = 227 << 10
"""Dynamic shared memory of a block of compute capability 9.0, in bytes: the most there is so far."""
FROM_PORTS: Final = {FULL: (0,), PROGRAMMATIC: (1, 2)}
"""By type of edge, as the driver allows: 0 the whole kernel, 1 its trigger, 2 all its blocks have begun."""


def fault(program: Program) -> str | None:
    """The first thing that does not hold, in words, or None."""
    return (
        next((found for kernel in program.kernels if (found := _kernel(kernel))), None)
        or _regions(program.regions)
        or _launches(program)
        or _shapes(program)
        or _params(program)
        or _edges(program)
    )


def _kernel(kernel: Kernel) -> str | None:
    # Drivers and linkers are told where a name ends by a zero byte, people by a space.
    if not re.fullmatch("[0-9a-f]{64}", kernel.binary) or not re.fullmatch("[!-~]+", kernel.symbol):
        return f"kernel {kernel.symbol!r} has no binary {kernel.binary!r}"
    if not set(kernel.param_sizes) <= set(PARAM_SIZES):
        return f"kernel {kernel.symbol} takes arguments of {kernel.param_sizes} bytes"
    if not 0 <= kernel.shared <= MAX_SHARED:
        return f"kernel {kernel.symbol} wants {kernel.shared} bytes of shared memory, {MAX_SHARED} are the most"
    return None


def _regions(regions: tuple[Region, ...]) -> str | None:
    names = [region.name for region in regions]
    if len(set(names)) != len(names) or not set(names) <= set(REGIONS):
        return f"regions {names}, each of {list(REGIONS)} at most once wanted"
    for region in regions:
        if not 0 <= region.nbytes < 1 << 63 or region.alignment not in ALIGNMENTS:
            return f"region {region.name} has {region.nbytes} bytes at multiples of {region.alignment}"
    return None


def _first(bad: np.ndarray) -> int | None:
    """The first place where `bad` [n] is true."""
    return int(bad.argmax()) if bad.any() else None


def _launches(program: Program) -> str | None:
    """Kernels exist, and arguments stand in the table without gaps in the order of their launches."""
    launches = program.launches
    if (i := _first(launches["kernel"] >= len(program.kernels))) is not None:
        return f"launch {i} is of kernel {launches['kernel'][i]}, there are {len(program.kernels)}"
    arity = np.array([len(kernel.param_sizes) for kernel in program.kernels] or [0])[launches["kernel"]]
    if (i := _first((launches["num_params"] != arity) | (launches["wait"] > 1))) is not None:
        return f"launch {i} has {launches['num_params'][i]} arguments and wait {launches['wait'][i]}, {arity[i]} wanted"
    if (i := _first(launches["first_param"] != np.cumsum(arity) - arity)) is not None:
        return f"the arguments of launch {i} do not stand behind those of the one before"
    if arity.sum() != len(program.params):
        return f"launches take {arity.sum()} arguments, there are {len(program.params)}"
    return None


def _shapes(program: Program) -> str | None:
    """Either no launch has a grid (a CPU's), or all have one that a GPU takes."""
    launches = program.launches
    grid, block, shared = (launches[name].astype(np.int64) for name in ("grid", "block", "shared"))
    if not block.any():
        plain = all(set(k.param_sizes) <= {POINTER} and not k.shared for k in program.kernels)
        held = plain and not grid.any() and not shared.any() and not len(program.edges)
        return None if held else "launches without blocks have no grid, shared memory or edges, and 8-byte arguments"
    most = np.array([kernel.shared for kernel in program.kernels])[launches["kernel"]]
    bad = np.any((grid < 1) | (grid > MAX_GRID) | (block < 1) | (block > MAX_BLOCK), axis=1)
    bad |= (np.prod(block, axis=1) > MAX_THREADS) | (shared > most)
    if (i := _first(bad)) is not None:
        return f"launch {i} has a grid of {grid[i]}, blocks of {block[i]} and {shared[i]} bytes of shared memory"
    return None


def _bits(program: Program) -> np.ndarray:
    """How many bits each argument has, uint64 [params], once launches are known to be sound."""
    launches, sizes = program.launches, [kernel.param_sizes for kernel in program.kernels]
    flat = np.array([size for taken in sizes for size in taken], np.uint64)
    starts = np.cumsum([0, *map(len, sizes)])[launches["kernel"]]
    # Argument j of a launch is row first_param + j of the table, and of its kernel's sizes the one at start + j.
    behind = np.repeat(starts - launches["first_param"], launches["num_params"])
    return 8 * flat[behind + np.arange(len(behind))]


def _params(program: Program) -> str | None:
    """Constants fit their arguments; what a pointer may touch lies inside its region, aligned as it says."""
    params, regions, bits = program.params, program.regions, _bits(program)
    region, alignment, value, extent = (params[name] for name in ("region", "alignment", "value", "extent"))
    constant = region == CONSTANT
    # A shift by all of 64 bits says nothing, so by one and then by the rest.
    wide = ((value >> np.uint64(1)) >> (bits - np.uint64(1))) > 0
    bad = constant & (wide | (extent > 0))
    bad |= ~constant & ((region < 0) | (region >= len(regions)) | (bits != 8 * POINTER))
    if (i := _first(bad)) is None:
        nbytes = np.array([*(r.nbytes for r in regions), 0], np.uint64)[region]  # CONSTANT reads the last
        most = np.array([*(r.alignment for r in regions), 0], np.uint32)[region]
        bad = (value >= nbytes) | (extent > nbytes - np.minimum(value, nbytes))
        bad |= ~np.isin(alignment, ALIGNMENTS) | (alignment > most) | (value % np.maximum(alignment, 1) != 0)
        i = _first(bad & ~constant)
    return None if i is None else _argument(program, i, int(bits[i]))


def _argument(program: Program, i: int, bits: int) -> str:
    """Argument `i` of the table in words: whose it is, and what it says of itself."""
    launches, regions = program.launches, program.regions
    region, alignment, value, extent = program.params[i].tolist()
    launch = int(np.searchsorted(launches["first_param"], i, side="right")) - 1
    symbol, number = program.kernels[launches["kernel"][launch]].symbol, i - int(launches["first_param"][launch])
    whose = f"argument {number} of launch {launch} ({symbol})"
    if region == CONSTANT:
        return f"{whose} is the constant {value}, which {bits // 8} bytes must hold, with an extent of {extent}"
    known = 0 <= region < len(regions)
    place = f"{regions[region].name}, which has {regions[region].nbytes}" if known else f"region {region}"
    return f"{whose} is byte {value} of {place}: {extent} bytes from there, at a multiple of {alignment}"


def _edges(program: Program) -> str | None:
    """Edges lead forward between launches, each at most once, with ports that their type has."""
    edges = program.edges
    source, target = edges["source"], edges["target"]
    pairs = source.astype(np.uint64) << np.uint64(32) | target
    again = np.ones(len(edges), bool)
    again[np.unique(pairs, return_index=True)[1]] = False
    bad = again | (source >= target) | (target >= len(program.launches))
    if (i := _first(bad)) is not None:
        return f"edge {i} leads from launch {source[i]} to {target[i]} of {len(program.launches)}"
    known = np.zeros(len(edges), bool)
    for kind, ports in FROM_PORTS.items():
        known |= (edges["type"] == kind) & np.isin(edges["from_port"], ports)
    if (i := _first(~known | (edges["to_port"] != 0) | edges["pad"].any(axis=1))) is not None:
        return f"edge {i} is of type {edges['type'][i]}, port {edges['from_port'][i]} to {edges['to_port'][i]}"
    return None
