"""The independent check of a CUDA program: the same launches by Triton's own launcher, captured, and compared.

A program is written from our own record of what is launched. Here PyTorch and Triton launch the same kernels once more
while CUDA captures them, and node by node both must say the same. No kernel runs: what lies in the regions is not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from tandem.artifacts.program import CONSTANT, Kernel, Program
from tandem.compile.cuda.graph_reader import Argument, EdgeRecord, KnownKernel, NodeRecord, Span, read_graph
from tandem.compile.cuda.graph_source import DriverGraph
from tandem.errors import LoweringError
from tandem.kernels.cuda.launch import TritonKernel, Work

OPTIONS = {"PDL": True, "launch_pdl": True, "enable_fp_fusion": False}
"""How every kernel of ours is compiled and launched, beside its own constants, warps and stages."""
EDGE_FIELDS = ("source", "target", "from_port", "to_port", "type")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch to repeat. `arguments` are its pointers by name: tensors that begin there, None if left out."""

    kernel: TritonKernel
    work: Work
    arguments: Mapping[str, Tensor | None]


def place(regions: Mapping[str, Tensor], region: str, offset: int, dtype: torch.dtype) -> Tensor:
    """The [elements] of `dtype` from byte `offset` of a region (uint8 [bytes]) to its end.

    LoweringError for an offset at or past the end, or between two elements.
    """
    whole, size = regions[region], dtype.itemsize
    if not 0 <= offset <= whole.numel() - size or offset % size:
        raise LoweringError(f"offset {offset} in {region} of {whole.numel()} bytes is no place of a {dtype}")
    end = offset + (whole.numel() - offset) // size * size
    return whole[offset:end].view(dtype)


def check_program(launches: Sequence[Launch], regions: Mapping[str, Tensor], program: Program) -> None:
    """Captures `launches` on the current GPU and holds `program` to what was captured.

    `regions` are one uint8 tensor each, at least as long as the program's. Raises LoweringError naming node and field.
    """
    records, edges = capture(launches, regions)
    compare(records, edges, program, {name: region.data_ptr() for name, region in regions.items()})


def capture(launches: Sequence[Launch], regions: Mapping[str, Tensor]) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    """What CUDA captures of `launches`, each behind the one before by programmatic dependence."""
    triton.knobs.compilation.disable_line_info = True
    compiled = [_call(launch, warmup=True) for launch in launches]
    known = {}
    for kernel in compiled:
        kernel._init_handles()  # loads the module, which a capture could not
        known[int(kernel.function)] = known_kernel(kernel)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for launch in launches:
            _call(launch)
    spans = [Span(name, region.data_ptr(), region.numel()) for name, region in regions.items()]
    return read_graph(DriverGraph(graph.raw_cuda_graph()), known, spans)


def known_kernel(compiled: Any) -> KnownKernel:
    """A kernel as Triton compiled it."""
    types = tuple(str(kind) for kind in compiled.src.signature.values() if kind != "constexpr")
    return KnownKernel(compiled.name, compiled.asm["cubin"], types)


def _call(launch: Launch, *, warmup: bool = False) -> Any:
    """Launches; with `warmup` only compiles. Returns Triton's compiled kernel."""
    work, function = launch.work, launch.kernel.function
    pointers = [launch.arguments[param.name] for param in launch.kernel.signature]
    options = dict(work.constants) | OPTIONS | {"num_warps": work.num_warps, "num_stages": work.num_stages}
    if warmup:
        return function.warmup(*pointers, grid=work.grid, **options)
    return function[work.grid](*pointers, **options)


def compare(
    records: Sequence[NodeRecord], edges: Sequence[EdgeRecord], program: Program, bases: Mapping[str, int]
) -> None:
    """Holds `program` to a captured graph whose regions lay at the addresses `bases`.

    Raises LoweringError naming the first node and field that differ.
    """
    if len(records) != len(program.launches):
        raise LoweringError(f"the program has {len(program.launches)} launches, {len(records)} nodes were captured")
    for i, (record, launch) in enumerate(zip(records, program.launches, strict=True)):
        kernel = program.kernels[launch["kernel"]]
        where = f"node {i} (kernel {record.symbol})"
        _same(where, "symbol", kernel.symbol, record.symbol)
        _same(where, "cubin", kernel.binary, record.cubin)
        for name in ("grid", "block"):
            _same(where, name, tuple(int(size) for size in launch[name]), getattr(record, name))
        _same(where, "shared bytes", int(launch["shared"]), record.shared)
        _compare_arguments(where, kernel, record, program, launch, bases)
    _compare_edges(edges, program.edges)


def _same(where: str, field: str, written: object, captured: object) -> None:
    if written != captured:
        raise LoweringError(f"{where}: {field} is {written} in the program and {captured} as captured; do not ship it")


def _compare_arguments(
    where: str, kernel: Kernel, record: NodeRecord, program: Program, launch: np.void, bases: Mapping[str, int]
) -> None:
    first, count = int(launch["first_param"]), int(launch["num_params"])
    _same(where, "number of arguments", count, len(record.arguments))
    _same(where, "bytes of arguments", kernel.param_sizes, tuple(len(a.value) for a in record.arguments))
    for i, (param, captured) in enumerate(zip(program.params[first : first + count], record.arguments, strict=True)):
        field = f"argument {i}"
        if i >= count - record.hidden:
            _same(where, f"{field}, Triton's own,", (None, 0), _written(param, program))
        _same(where, field, _written(param, program), _read(captured))
        if captured.region is not None:
            address = int.from_bytes(captured.value, "little")
            _same(where, f"address of {field}", bases[captured.region] + int(param["value"]), address)
            _same(where, f"{field} modulo its alignment", 0, address % int(param["alignment"]))


def _written(param: np.void, program: Program) -> tuple[str | None, int]:
    """(region or None, offset or constant) of a program's argument."""
    region = int(param["region"])
    return None if region == CONSTANT else program.regions[region].name, int(param["value"])


def _read(argument: Argument) -> tuple[str | None, int]:
    """The same of a captured one."""
    if argument.region is not None:
        return argument.region, argument.offset
    return None, int.from_bytes(argument.value, "little")


def _compare_edges(captured: Sequence[EdgeRecord], written: np.ndarray) -> None:
    ours = _links([EdgeRecord(*(int(edge[name]) for name in EDGE_FIELDS)) for edge in written])
    theirs = _links(captured)
    for source, target in sorted(ours.keys() | theirs.keys()):
        field = f"edge from node {source} (ports and type)"
        _same(f"node {target}", field, ours.get((source, target)), theirs.get((source, target)))


def _links(edges: Sequence[EdgeRecord]) -> dict[tuple[int, int], set[tuple[int, int, int]]]:
    """(from_port, to_port, type) of the edges by (source, target)."""
    links: dict[tuple[int, int], set[tuple[int, int, int]]] = {}
    for source, target, *data in edges:
        links.setdefault((source, target), set()).add((data[0], data[1], data[2]))
    return links
