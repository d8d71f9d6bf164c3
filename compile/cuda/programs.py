"""Lowers every program of a CUDA bundle and writes it down once its kernels are compiled.

A program is our own record of what is launched: each argument is a place in a region because it was put there, and no
value is ever looked at to find out. `capture` holds the record against a graph captured from Triton's own launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import CONSTANT, EDGE, LAUNCH, PARAM, PROGRAMMATIC, Kernel, Program, Region
from tandem.compile.assembly import ALIGNMENT, Assembly, Launch, Operand, alignment, encode_argument
from tandem.compile.compose import Composer
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.lowering import CudaLowering
from tandem.kernels.cuda.build import Cubin, Pointer, Variant
from tandem.kernels.cuda.table import KERNELS
from tandem.keys import Kind

VECTOR = 16
"""Bytes that Triton's widest accesses take: whether a pointer is a multiple of it decides a kernel's code."""
PORT = 1
"""Where a programmatic edge leaves a kernel's node: when all its blocks have let the next one start."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program whose kernels are not compiled yet; `nbytes` are the sizes of its regions, scratch included."""

    shape: Shape
    launches: tuple[Launch, ...]
    nbytes: dict[str, int]

    def variants(self) -> set[Variant]:
        """The kernels it needs."""
        return {variant_of(launch) for launch in self.launches}


def lower(composer: Composer, shape: Shape) -> Lowered:
    """Traces, lowers and lays out one program. LoweringError names what has no lowering."""
    g = composer.geometry
    io = IoLayout(g)
    assembly = Assembly({name: kernel.signature for name, kernel in KERNELS.items()})
    lowering = CudaLowering(
        assembly,
        io,
        rows=shape.rows,
        context=shape.context_class or g.context_length,
        layers=composer.spec.num_hidden_layers,
        compute=composer.profile.matrix,
    )
    if shape.kinds == (Kind.COMMIT,):
        composer.lower_commit(lowering, 1)  # one launch moves all layers
    else:
        composer.lower_pass(lowering, tree=shape.kinds == (Kind.VERIFY_TREE,))
    nbytes = {"weights": len(composer.weights.data), "kv": g.page_bytes, "io": io.nbytes}
    # Each launch waits for the one before, so a buffer is free again right behind its last launch.
    nbytes["scratch"] = assembly.plan_scratch([True] * len(assembly.launches))
    return Lowered(shape, tuple(assembly.launches), nbytes)


def variant_of(launch: Launch) -> Variant:
    """The kernel that a launch needs."""
    assert launch.work is not None
    return Variant.of(launch.kernel, [_pointer(value) for value in launch.values()], launch.work)


def _pointer(value: object) -> Pointer | None:
    if value is None:
        return None
    assert isinstance(value, Operand)
    return Pointer(value.dtype, alignment(value.offset) >= VECTOR)


def encode_program(lowered: Lowered, cubins: Mapping[Variant, Cubin], add: Callable[[bytes], str]) -> Program:
    """The finished program. `add` is given each cubin that it uses and returns its sha256."""
    order = {name: i for i, name in enumerate(lowered.nbytes)}
    kernels: dict[Kernel, int] = {}
    launches, params = np.zeros(len(lowered.launches), LAUNCH), list[tuple[int, int, int, int]]()
    for line, launch in zip(launches, lowered.launches, strict=True):
        cubin = cubins[variant_of(launch)]
        kernel = Kernel(add(cubin.data), cubin.symbol, cubin.param_sizes, cubin.shared)
        given = [encode_argument(value, order) for value in launch.values() if value is not None]
        given += [(CONSTANT, 1, 0, 0)] * cubin.hidden
        assert launch.work is not None
        line["kernel"], line["first_param"] = kernels.setdefault(kernel, len(kernels)), len(params)
        line["num_params"], line["grid"] = len(given), launch.work.grid
        line["block"], line["shared"] = (cubin.threads, 1, 1), cubin.shared
        params += given
    regions = tuple(Region(name, size, ALIGNMENT) for name, size in lowered.nbytes.items())
    return Program(tuple(kernels), regions, launches, np.array(params, PARAM), _chain(len(launches)))


def _chain(count: int) -> np.ndarray:
    edges = np.zeros(count - 1, EDGE)
    edges["source"], edges["target"] = np.arange(count - 1), np.arange(1, count)
    edges["from_port"], edges["type"] = PORT, PROGRAMMATIC
    return edges
