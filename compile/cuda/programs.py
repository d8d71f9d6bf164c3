"""Lowers every program of a CUDA bundle and writes it down once its kernels are compiled.

A program is our own record of what is launched: each argument is a place in a region because it was put there, and no
value is ever looked at to find out. `capture` holds the record against a graph captured from Triton's own launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import CONSTANT, EDGE, FULL, LAUNCH, PARAM, PROGRAMMATIC, Kernel, Program, Region
from tandem.compile.assembly import ALIGNMENT, Assembly, Launch, Operand, alignment, encode_argument
from tandem.compile.compose import Composer
from tandem.compile.cuda.chain import lower_next
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.glue_compile import GlueLaunch
from tandem.compile.cuda.glue_kernel import GlueKernel
from tandem.compile.cuda.graph_source import Grid
from tandem.compile.cuda.lowering import CudaLowering
from tandem.compile.cuda.sample import lower_sample
from tandem.kernels.cuda.build import Cubin, Pointer, Variant
from tandem.kernels.cuda.table import KERNELS
from tandem.keys import DRAFTER_KINDS, Kind

VECTOR = 16
"""Bytes that Triton's widest accesses take: whether a pointer is a multiple of it decides a kernel's code."""
POINTER = 8
"""Bytes of an address."""
PORT = 1
"""Where a programmatic edge leaves a kernel's node: when all its blocks have let the next one start."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program whose kernels are not compiled yet; `nbytes` are the sizes of its regions, scratch included.

    `glue` has the kernels of the launches that are of no kernel of the table, by the name they have there.
    """

    shape: Shape
    launches: tuple[Launch, ...]
    nbytes: dict[str, int]
    glue: Mapping[str, GlueKernel] = field(default_factory=dict)

    def variants(self) -> set[Variant]:
        """The kernels of the table that it needs."""
        return {variant_of(launch) for launch in self.launches if launch.kernel not in self.glue}


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
        layers=g.num_layers,
        compute=composer.profile.matrix,
    )
    if shape.kinds == (Kind.COMMIT,):
        composer.lower_commit(lowering, 1)  # a launch of each kernel moves all layers
    elif shape.kinds == (Kind.SAMPLE,):
        lower_sample(lowering)
    elif shape.kinds == (Kind.NEXT,):
        lower_next(lowering)
    elif shape.kinds[0] in DRAFTER_KINDS:
        composer.lower_draft(lowering, shape.kinds[0])
    else:
        composer.lower_pass(lowering, shape.kinds[0])
    return lay_out(lowering, shape, composer.region_bytes)


def lay_out(lowering: CudaLowering, shape: Shape, nbytes: Mapping[str, int]) -> Lowered:
    """What was lowered, scratch planned. `nbytes` are the sizes of the other regions."""
    assembly = lowering.assembly
    # Each launch waits for the one before, so a buffer is free again right behind its last launch.
    scratch = assembly.plan_scratch([True] * len(assembly.launches))
    return Lowered(shape, tuple(assembly.launches), {**nbytes, "scratch": scratch}, lowering.glue)


def variant_of(launch: Launch) -> Variant:
    """The kernel that a launch needs."""
    assert launch.work is not None
    return Variant.of(launch.kernel, [_pointer(value) for value in launch.values()], launch.work)


def _pointer(value: object) -> Pointer | None:
    if value is None:
        return None
    assert isinstance(value, Operand)
    return Pointer(value.dtype, alignment(value.offset) >= VECTOR)


class _Node(NamedTuple):
    """A launch as it is written down; `params` are rows of PARAM. `early` launches start at a trigger before them."""

    kernel: Kernel
    grid: Grid
    block: Grid
    params: list[tuple[int, int, int, int]]
    early: bool


def encode_program(
    lowered: Lowered,
    cubins: Mapping[Variant, Cubin],
    add: Callable[[bytes], str],
    glue: Mapping[GlueKernel, Sequence[GlueLaunch]] = MappingProxyType({}),
) -> Program:
    """The finished program. `add` is given each cubin that it uses and returns its sha256; `glue` has its glue."""
    order = {name: i for i, name in enumerate(lowered.nbytes)}
    nodes: list[_Node] = []
    for launch in lowered.launches:
        if kernel := lowered.glue.get(launch.kernel):
            nodes += _glue_nodes(launch, glue[kernel], order, add)
        else:
            nodes.append(_node(launch, cubins[variant_of(launch)], order, add))
    kernels = {kernel: i for i, kernel in enumerate(dict.fromkeys(node.kernel for node in nodes))}
    launches, params = np.zeros(len(nodes), LAUNCH), list[tuple[int, int, int, int]]()
    for line, node in zip(launches, nodes, strict=True):
        line["kernel"], line["first_param"], line["num_params"] = kernels[node.kernel], len(params), len(node.params)
        line["grid"], line["block"], line["shared"] = node.grid, node.block, node.kernel.shared
        params += node.params
    regions = tuple(Region(name, size, ALIGNMENT) for name, size in lowered.nbytes.items())
    early = [before.early and after.early for before, after in pairwise(nodes)]
    return Program(tuple(kernels), regions, launches, np.array(params, PARAM), _chain(np.array(early, bool)))


def _node(launch: Launch, cubin: Cubin, order: dict[str, int], add: Callable[[bytes], str]) -> _Node:
    assert launch.work is not None
    kernel = Kernel(add(cubin.data), cubin.symbol, cubin.param_sizes, cubin.shared)
    params = [encode_argument(value, order) for value in launch.values() if value is not None]
    params += [(CONSTANT, 1, 0, 0)] * cubin.hidden
    return _Node(kernel, launch.work.grid, (cubin.threads, 1, 1), params, early=True)


def _glue_nodes(
    launch: Launch, made: Sequence[GlueLaunch], order: dict[str, int], add: Callable[[bytes], str]
) -> Iterator[_Node]:
    """The kernels that a run of glue became, in order. They know no triggers: `GlueLaunch.edge` is a full one."""
    for glue in made:
        sizes = tuple(len(a) if isinstance(a, bytes) else POINTER for a in glue.arguments)
        kernel = Kernel(add(glue.cubin), glue.symbol, sizes, glue.shared)
        params = [
            (CONSTANT, 1, int.from_bytes(a, "little"), 0)
            if isinstance(a, bytes)
            else encode_argument(launch.arguments[a], order)
            for a in glue.arguments
        ]
        yield _Node(kernel, glue.grid, glue.block, params, early=False)


def _chain(early: np.ndarray) -> np.ndarray:
    """Edges from each launch to the next, programmatic where `early` [launches - 1], else full."""
    count = len(early)
    edges = np.zeros(count, EDGE)
    edges["source"], edges["target"] = np.arange(count), np.arange(1, count + 1)
    edges["from_port"], edges["type"] = np.where(early, PORT, 0), np.where(early, PROGRAMMATIC, FULL)
    return edges
