"""Small programs as a CUDA bundle holds them, over a geometry of two layers, and what a fake GPU makes of them.

A program's launches each take a field of io, a place in the weights, the scratch and a whole number of 4 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import CONSTANT, EDGE, LAUNCH, PARAM, Kernel, Program, Region, decode, encode
from tandem.keys import Kind, context_classes
from tandem.runtime.executor.cuda.image import EntryProgram, Image
from tests.copier import copier
from tests.fake_device import make_cubin

GEOMETRY = Geometry(
    context_length=3000,
    vocab_size=23,
    max_rows=128,
    max_outputs=32,
    max_lanes=2,
    page_tokens=64,
    page_bytes=2 * 64 * (2 * 8 + 2 * 12),
    kv_planes=((2, 8), (2, 12)),
)
LAYOUT = IoLayout(GEOMETRY)
SIZES = (8, 8, 8, 4)
WEIGHT_BYTES, SCRATCH_BYTES = 100_000, 4096
REGIONS = tuple(
    Region(name, nbytes)
    for name, nbytes in (
        ("weights", WEIGHT_BYTES),
        ("kv", GEOMETRY.page_bytes),
        ("io", LAYOUT.nbytes),
        ("scratch", SCRATCH_BYTES),
    )
)
WEIGHTS, KV, IO, SCRATCH = range(4)
CUBINS = {
    hashlib.sha256(cubin).hexdigest(): cubin
    for cubin in (make_cubin({"first": SIZES}), make_cubin({"second": SIZES, "third": SIZES}))
}
FIRST, SECOND = CUBINS
KERNELS = (
    Kernel(FIRST, "first", SIZES),
    Kernel(SECOND, "second", SIZES, shared=100_000),
    Kernel(SECOND, "third", SIZES, shared=1000),
)
CHAIN = ((0, 1), (1, 2))
TOLD = {Kind.EXTEND: "counts", Kind.VERIFY_CHAIN: "counts", Kind.VERIFY_TREE: "ancestor", Kind.COMMIT: "move_target"}
"""The field of io that programs of a kind take, by which they are told apart."""


def program(
    number: int,
    kernels: Sequence[Kernel] = KERNELS,
    edges: Sequence[tuple[int, int]] = CHAIN,
    programmatic: bool = True,
    kind: Kind = Kind.EXTEND,
) -> Program:
    """One launch of each of `kernels`; `number` is the last argument of each. Checked as a bundle's is."""
    told = LAYOUT.fields[TOLD[kind]].offset
    launches, params = np.zeros(len(kernels), LAUNCH), np.zeros(len(SIZES) * len(kernels), PARAM)
    for i, kernel in enumerate(kernels):
        launches[i] = (i, len(SIZES) * i, len(SIZES), 0, (3 + i, 2, 1), (128, 1, 1), kernel.shared)
        params[len(SIZES) * i : len(SIZES) * (i + 1)] = [
            (IO, 64, told, 64),
            (WEIGHTS, 32, 64 + 32 * i, 1000),
            (SCRATCH, 64, 0, SCRATCH_BYTES),
            (CONSTANT, 0, number, 0),
        ]
    table = np.zeros(len(edges), EDGE)
    for i, (source, target) in enumerate(edges):
        table[i] = (source, target, int(programmatic), 0, int(programmatic), 0)
    return decode(encode(Program(tuple(kernels), REGIONS, launches, params, table)), "sample")


def entries() -> list[EntryProgram]:
    """Rows 1 and 4 for steps and chains (the same programs) and for trees, by class; two chunks; a commit.

    Numbers count programs from 0, in the order of their first entry.
    """
    made: list[EntryProgram] = []
    for context in context_classes(GEOMETRY.context_length):
        for rows in (1, 4):
            shared = program(len({id(entry[3]) for entry in made}))
            made += [(kind, context, rows, shared) for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN)]
            tree = program(len({id(entry[3]) for entry in made}), kind=Kind.VERIFY_TREE)
            made.append((Kind.VERIFY_TREE, context, rows, tree))
    for kind, rows in ((Kind.EXTEND, 64), (Kind.EXTEND, 128), (Kind.COMMIT, 32)):
        made.append((kind, 0, rows, program(len({id(entry[3]) for entry in made}), kind=kind)))
    return made


def weights() -> bytes:
    return np.random.default_rng(3).integers(0, 256, WEIGHT_BYTES, np.uint8).tobytes()


def image(folder: Path, programs: Sequence[EntryProgram] | None = None) -> Image:
    """An image whose weights lie in `folder`."""
    (folder / "weights.safetensors").write_bytes(weights())
    return Image(GEOMETRY, folder / "weights.safetensors", programs or entries(), CUBINS, copier())
