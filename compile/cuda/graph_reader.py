"""Reads a captured CUDA graph into plain records: kernels in order, each pointer as a place in a named region.

What is a pointer is known from the kernel's signature, never guessed from a value. Knows nothing of programs, nor of
who captured. Whatever is not known fails by name: it would be lost, or be an address of this process in a bundle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from tandem.compile.cuda.graph_source import GraphSource, Grid, KernelCall
from tandem.errors import LoweringError

KERNEL = 0
NODE_TYPES = (
    *("kernel", "memcpy", "memset", "host function", "child graph", "empty", "event wait", "event record"),
    *("semaphore signal", "semaphore wait", "allocation", "free", "batch of memory operations", "conditional"),
)
"""By number of CUgraphNodeType."""
POINTER = 8
SIZES = {
    **dict.fromkeys(("i1", "i8", "u8"), 1),
    **dict.fromkeys(("i16", "u16"), 2),
    **dict.fromkeys(("i32", "u32", "fp32", "f32"), 4),
    **dict.fromkeys(("i64", "u64", "fp64"), 8),
}
"""Bytes of an argument of each type that a Triton signature knows and that is no address."""
HIDDEN = 2
"""Pointers that Triton adds behind a signature at most: scratch of the kernel's and of a profiler's, null if unused."""


@dataclass(frozen=True)
class KnownKernel:
    """A kernel whose binary is at hand. `types` are those of its arguments in the Triton signature: `*bf16`, `i32`."""

    symbol: str
    cubin: bytes
    types: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.cubin).hexdigest()


class Span(NamedTuple):
    """A region: `nbytes` from the address `base` on."""

    name: str
    base: int
    nbytes: int


class Argument(NamedTuple):
    """The bytes a kernel gets; of a pointer that is not null also where it points."""

    value: bytes
    region: str | None = None
    offset: int = 0


class NodeRecord(NamedTuple):
    """A kernel launch. `cubin` is the sha256 of its binary, `shared` in bytes; the last `hidden` arguments are null."""

    symbol: str
    cubin: str
    grid: Grid
    block: Grid
    shared: int
    arguments: tuple[Argument, ...]
    hidden: int = 0


class EdgeRecord(NamedTuple):
    """Node `target` waits for node `source` (places in the list of records); the rest as in CUgraphEdgeData."""

    source: int
    target: int
    from_port: int = 0
    to_port: int = 0
    type: int = 0


def read_graph(
    source: GraphSource, known: Mapping[int, KnownKernel], spans: Sequence[Span]
) -> tuple[list[NodeRecord], list[EdgeRecord]]:
    """Records of all nodes in topological order, ties in the graph's own, and of all edges, sorted.

    `known` has the kernels by function handle. Raises LoweringError naming node, kernel and argument for a kernel
    that is not known, a node that is no kernel, a launch attribute that programs do not hold, a hidden argument that
    is not null, and a pointer outside all `spans`.
    """
    _check_disjoint(spans)
    nodes, edges = source.nodes(), source.edges()
    place = {nodes[index]: i for i, index in enumerate(_order(nodes, [(e.source, e.target) for e in edges]))}
    records = [
        _record(source, node, f"node {place[node]}", known, spans) for node in sorted(nodes, key=place.__getitem__)
    ]
    return records, sorted(EdgeRecord(place[e.source], place[e.target], *e[2:]) for e in edges)


def _check_disjoint(spans: Sequence[Span]) -> None:
    ordered = sorted((span for span in spans if span.nbytes), key=lambda span: span.base)
    for before, after in pairwise(ordered):
        if before.base + before.nbytes > after.base:
            raise LoweringError(f"regions {before.name} and {after.name} overlap; a pointer would have two places")


def _order(nodes: list[int], edges: Iterable[tuple[int, int]]) -> list[int]:
    """Places in `nodes` so that no node comes before one it waits for; the lowest place first where several could."""
    place = {node: i for i, node in enumerate(nodes)}
    behind: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for source, target in edges:
        behind[place[source]].append(place[target])
        waiting[place[target]] += 1
    ready = [i for i, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for i in behind[order[-1]]:
            waiting[i] -= 1
            if not waiting[i]:
                heappush(ready, i)
    if len(order) < len(nodes):
        raise LoweringError("the captured graph's edges form a circle; capture it again")
    return order


def _record(
    source: GraphSource, node: int, where: str, known: Mapping[int, KnownKernel], spans: Sequence[Span]
) -> NodeRecord:
    if (kind := source.node_type(node)) != KERNEL:
        name = NODE_TYPES[kind] if 0 <= kind < len(NODE_TYPES) else f"type {kind}"
        raise LoweringError(f"{where} is no kernel but of type {name}; programs hold kernel launches alone")
    call = source.kernel(node)
    where = f"{where} (kernel {call.symbol})"
    if call.function not in known:
        raise LoweringError(f"{where} is not one of our kernels: a library's, or one loaded elsewhere; leave it out")
    if call.attributes:
        raise LoweringError(f"{where} is launched with {', '.join(call.attributes)}, which programs do not hold")
    kernel = known[call.function]
    if kernel.symbol != call.symbol:
        raise LoweringError(f"{where} was loaded as {kernel.symbol}; its module is gone, keep compiled kernels alive")
    hidden = _hidden(call, kernel, where)
    arguments = (
        *(_argument(value, kind, f"{where}, argument {i}", spans)
          for i, (value, kind) in enumerate(zip(call.arguments, kernel.types, strict=False))),
        *map(Argument, call.arguments[len(kernel.types) :]),
    )  # fmt: skip
    return NodeRecord(call.symbol, kernel.digest, call.grid, call.block, call.shared, arguments, hidden)


def _hidden(call: KernelCall, kernel: KnownKernel, where: str) -> int:
    """How many arguments stand behind those of the signature."""
    hidden = call.arguments[len(kernel.types) :]
    if not 0 <= len(call.arguments) - len(kernel.types) <= HIDDEN:
        takes = f"{len(call.arguments)} arguments, its signature has {len(kernel.types)}"
        raise LoweringError(f"{where} takes {takes} and Triton adds {HIDDEN} at most; this Triton is not known here")
    for i, value in enumerate(hidden, len(kernel.types)):
        if value != bytes(POINTER):
            raise LoweringError(f"{where}, argument {i} is Triton's own scratch ({value.hex()}), which no program has")
    return len(hidden)


def _argument(value: bytes, kind: str, where: str, spans: Sequence[Span]) -> Argument:
    pointer = kind.startswith("*")
    if not pointer and kind not in SIZES:
        raise LoweringError(f"{where} is of type {kind}, which may hold addresses inside; pass pointers and numbers")
    if len(value) != (POINTER if pointer else SIZES[kind]):
        raise LoweringError(f"{where} of type {kind} has {len(value)} bytes; this Triton is not known here")
    if not pointer or value == bytes(POINTER):
        return Argument(value)
    address = int.from_bytes(value, "little")
    for span in spans:
        if span.base <= address < span.base + span.nbytes:
            return Argument(value, span.name, address - span.base)
    known = ", ".join(f"{span.name} {span.base:#x} to {span.base + span.nbytes:#x}" for span in spans)
    raise LoweringError(f"{where} points to {address:#x}, outside all regions ({known}); give it a place in one")
