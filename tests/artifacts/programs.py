"""Sound programs of both devices: by hand as docs/bundle.md draws them, as records, and any there could be."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tandem.artifacts.program import CONSTANT, EDGE, LAUNCH, PARAM, REGIONS, Kernel, Program, Region

SHA = "ab" * 32
HEADER = {
    "version": 2,
    "kernels": [[SHA, "tdm_add", [8, 8], 0], [SHA, "tdm_mul", [8], 0]],
    "regions": [["kv", 4096, 64], ["io", 640, 64]],
    "launches": 2,
    "params": 3,
    "edges": 0,
}
HOST = (0, 0, 0, 0, 0, 0, 0)
"""Grid, block and shared memory of a launch on a CPU."""
LAUNCHES = [(0, 0, 2, 0, *HOST), (1, 2, 1, 1, *HOST)]
PARAMS = [(0, 64, 128, 3968), (CONSTANT, 1, 2**64 - 5, 0), (1, 4, 636, 4)]

CUDA_HEADER = HEADER | {"kernels": [[SHA, "add", [8, 4], 4096], ["cd" * 32, "mul", [8], 0]], "edges": 1}
CUDA_LAUNCHES = [(0, 0, 2, 0, 132, 1, 1, 128, 1, 1, 4096), (1, 2, 1, 0, 7, 65535, 2, 16, 8, 8, 0)]
CUDA_PARAMS = [(0, 64, 128, 3968), (CONSTANT, 1, 2**32 - 5, 0), (1, 4, 636, 4)]
EDGES = [(0, 1, 1, 0, 1, 0)]
"""Source, target, ports, type, padding."""


def file(
    header: object = HEADER,
    launches: list[tuple[int, ...]] = LAUNCHES,
    params: list[tuple[int, ...]] = PARAMS,
    edges: Sequence[tuple[int, ...]] = (),
) -> bytes:
    """A program file by hand, after the drawing in docs/bundle.md."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(48 + len(text)) % 64)
    tables = b"".join(struct.pack("<11I", *row) for row in launches)
    tables += b"".join(struct.pack("<iIQQ", *row) for row in params)
    tables += b"".join(struct.pack("<2I3B", *row[:5]) + row[5].to_bytes(5, "little") for row in edges)
    length = struct.pack("<Q", len(text))
    rest = text + tables
    return b"TDMPROG\n" + length + hashlib.sha256(length + rest).digest() + rest


def cuda_file(**changes: Any) -> bytes:
    facts = {"header": CUDA_HEADER, "launches": CUDA_LAUNCHES, "params": CUDA_PARAMS, "edges": EDGES}
    return file(**(facts | changes))


def row(launch: tuple[int, ...]) -> tuple[Any, ...]:
    """A row of LAUNCH from eleven numbers."""
    return (*launch[:4], launch[4:7], launch[7:10], launch[10])


def sample() -> Program:
    kernels = (Kernel(SHA, "tdm_add", (8, 8)), Kernel(SHA, "tdm_mul", (8,)))
    regions = (Region("kv", 4096), Region("io", 640))
    return Program(kernels, regions, np.array([row(x) for x in LAUNCHES], LAUNCH), np.array(PARAMS, PARAM))


def cuda_sample() -> Program:
    kernels = (Kernel(SHA, "add", (8, 4), 4096), Kernel("cd" * 32, "mul", (8,), 0))
    launches, params = np.array([row(x) for x in CUDA_LAUNCHES], LAUNCH), np.array(CUDA_PARAMS, PARAM)
    edges = np.zeros(1, EDGE)
    edges["target"] = edges["from_port"] = edges["type"] = 1
    return Program(kernels, sample().regions, launches, params, edges)


ALIGNMENTS = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any sound program, of a CPU or of a GPU."""
    on_gpu = draw(st.booleans())
    names = draw(st.lists(st.sampled_from(REGIONS), unique=True, min_size=1))
    regions = tuple(Region(n, draw(st.integers(1, 2**62)), draw(ALIGNMENTS)) for n in names)
    taken = st.lists(st.sampled_from([1, 2, 4, 8] if on_gpu else [8]), max_size=4).map(tuple)
    shared = st.integers(0, 227 * 1024 if on_gpu else 0)
    kernels = tuple(
        Kernel(
            SHA,
            draw(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)),
            sizes,
            draw(shared),
        )
        for sizes in draw(st.lists(taken, min_size=1, max_size=3))
    )
    launches: list[tuple[Any, ...]] = []
    params: list[tuple[int, ...]] = []
    for which in draw(st.lists(st.integers(0, len(kernels) - 1), min_size=1, max_size=5)):
        called = kernels[which]
        shape = draw(shapes(called.shared)) if on_gpu else ((0, 0, 0), (0, 0, 0), 0)
        launches.append((which, len(params), len(called.param_sizes), draw(st.integers(0, 1)), *shape))
        params += [draw(arguments(size, regions)) for size in called.param_sizes]
    return Program(
        kernels,
        regions,
        np.array(launches, LAUNCH),
        np.array(params, PARAM),
        draw(edges(len(launches) if on_gpu else 0)),
    )


@st.composite
def shapes(draw: st.DrawFn, most_shared: int) -> tuple[Any, ...]:
    grid = tuple(draw(st.integers(1, most)) for most in (2**31 - 1, 65535, 65535))
    block = draw(st.sampled_from([(1, 1, 1), (1024, 1, 1), (1, 1024, 1), (16, 1, 64), (32, 32, 1)]))
    return grid, block, draw(st.integers(0, most_shared))


@st.composite
def arguments(draw: st.DrawFn, size: int, regions: tuple[Region, ...]) -> tuple[int, ...]:
    place = draw(st.integers(CONSTANT, len(regions) - 1 if size == 8 else CONSTANT))
    if place == CONSTANT:
        return CONSTANT, 1, draw(st.integers(0, 256**size - 1)), 0
    step = min(regions[place].alignment, draw(ALIGNMENTS))
    value = draw(st.integers(0, (regions[place].nbytes - 1) // step)) * step
    return place, step, value, draw(st.integers(0, regions[place].nbytes - value))


@st.composite
def edges(draw: st.DrawFn, launches: int) -> np.ndarray:
    ports = st.sampled_from([(0, 0, 0), (1, 0, 1), (2, 0, 1)])
    pairs = [(i, j) for j in range(launches) for i in range(j) if draw(st.booleans())]
    return np.array([(*pair, *draw(ports), (0,) * 5) for pair in pairs], EDGE)
