"""A program as a CUDA graph: node structs and edges made in numpy all at once, then one driver call per node.

Structs are those of cuda.h: `CUgraphNodeParams` with `CUDA_KERNEL_NODE_PARAMS_v3` inside, `CUgraphEdgeData`. Knows
nothing of where graphs are kept or when they run.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from tandem.artifacts.program import Program
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, DeviceError

WORD = 8
KERNEL_NODE = 0
NODE = np.dtype(
    {
        "names": ["type", "function", "grid", "block", "shared", "params", "extra", "kernel", "context"],
        "formats": ["<i4", "<u8", ("<u4", 3), ("<u4", 3), "<u4", "<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 16, 24, 36, 48, 56, 64, 72, 80],
        "itemsize": 256,
    }
)
"""CUgraphNodeParams of a kernel: int type; int reserved0[3]; the kernel's params in a union of 232 bytes; int64 zero.

Those are: CUfunction func; unsigned gridDim[3], blockDim[3], sharedMemBytes; void **kernelParams, **extra; CUkernel
kern (read only where func is null); CUcontext ctx (ignored where func is set).
"""


def fault(program: Program) -> str | None:
    """Why a program is no graph for this executor, or None. Launches share scratch: each waits for the one before."""
    if not program.launches["block"].all():
        return "its launches have no blocks: it is a CPU's"
    edges, joined = program.edges, np.zeros(len(program.launches), bool)
    joined[edges["target"][edges["source"] + 1 == edges["target"]]] = True
    if not joined[1:].all():
        loose = 1 + int((~joined[1:]).argmax())
        return f"launch {loose} does not wait for launch {loose - 1}"
    return None


@dataclass(frozen=True, slots=True)
class Nodes:
    """A program's nodes at given addresses. The arrays point into each other: they live as long as this does."""

    words: np.ndarray  # argument words, uint64 [params]
    pointers: np.ndarray  # the address of each, uint64 [params]
    structs: np.ndarray  # NODE [launches]

    @staticmethod
    def of(program: Program, functions: np.ndarray, bases: dict[str, int]) -> Nodes:
        """`functions` uint64 [kernels] are handles, `bases` the addresses of regions by name."""
        launches = program.launches
        words = np.ascontiguousarray(program.relocate(bases))
        pointers = words.ctypes.data + WORD * np.arange(len(words), dtype=np.uint64)
        structs = np.zeros(len(launches), NODE)
        structs["type"] = KERNEL_NODE
        structs["function"] = functions[launches["kernel"]]
        for field in ("grid", "block", "shared"):
            structs[field] = launches[field]
        structs["params"] = pointers.ctypes.data + WORD * launches["first_param"].astype(np.uint64)
        return Nodes(words, pointers, structs)


@dataclass(frozen=True, slots=True)
class Edges:
    """A program's edges by target, sources in the order of the program."""

    count: np.ndarray  # int64 [launches], edges that lead to a launch
    first: np.ndarray  # int64 [launches], the first of them in the others
    source: np.ndarray  # int64 [edges]
    data: np.ndarray  # CUgraphEdgeData, uint64 [edges]

    @staticmethod
    def of(program: Program) -> Edges:
        order = np.argsort(program.edges["target"], kind="stable")
        edges = program.edges[order]
        count = np.bincount(edges["target"], minlength=len(program.launches))
        # source and target take the first 8 bytes of an edge, ports, type and padding the other 8.
        data = np.ascontiguousarray(edges).view(np.uint64).reshape(-1, 2)[:, 1].copy()
        return Edges(count, np.cumsum(count) - count, edges["source"].astype(np.int64), data)


def build(
    stack: ExitStack, driver: Driver, program: Program, functions: np.ndarray, bases: dict[str, int], stream: int
) -> int:
    """An executable graph of `program` that ends with `stack`, sent to the device on `stream`.

    DeviceError names the launch that the driver refuses.
    """
    nodes, edges = Nodes.of(program, functions, bases), Edges.of(program)
    graph = driver.graph()
    try:
        _add(driver, graph, program, nodes, edges)
        made = driver.instantiate(graph)
        stack.callback(driver.executable_destroy, made)
    finally:
        driver.graph_destroy(graph)
    driver.upload(made, stream)
    driver.synchronize(stream)
    return made


def _add(driver: Driver, graph: int, program: Program, nodes: Nodes, edges: Edges) -> None:
    handles = np.zeros(len(nodes.structs), np.uint64)
    gathered = np.zeros(len(edges.source), np.uint64)  # handles of sources, where there are several
    out = handles.ctypes.data + WORD * np.arange(len(handles))
    struct = nodes.structs.ctypes.data + NODE.itemsize * np.arange(len(handles))
    data = edges.data.ctypes.data + WORD * edges.first
    sources = gathered.ctypes.data + WORD * edges.first
    single = edges.count == 1
    sources[edges.count == 0] = data[edges.count == 0] = 0
    sources[single] = handles.ctypes.data + WORD * edges.source[edges.first[single]]
    columns = (column.tolist() for column in (out, sources, data, edges.count, struct, edges.first))
    add_node = driver.add_node
    for i, (made, source, kind, count, params, first) in enumerate(zip(*columns, strict=True)):
        if count > 1:
            gathered[first : first + count] = handles[edges.source[first : first + count]]
        if code := add_node(made, graph, source, kind, count, params):
            error = driver.error("cuGraphAddNode_v2", code)
            symbol = program.kernels[program.launches["kernel"][i]].symbol
            raise DeviceError(f"launch {i} ({symbol}): {error}", call=error.call, code=code)


def require(program: Program) -> None:
    """Raises BundleCorrupt for a program with a `fault`."""
    if found := fault(program):
        raise BundleCorrupt(f"a program is no graph: {found}; rebuild the bundle")
