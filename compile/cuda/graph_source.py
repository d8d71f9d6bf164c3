"""A CUDA graph through the driver's own calls: nodes, edges with their data, kernels with copies of their arguments.

Knows nothing of what they mean; `graph_reader` does. Structures and numbers: CUDA driver API 12.3 and later.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_void_p
from typing import Any, NamedTuple, Protocol

from tandem.errors import LoweringError
from tandem.libcuda import INVALID_VALUE, LIBRARY

BUFFER, BUFFER_BYTES = 1, 2
"""Tags in a launch's `extra` list: where all arguments lie packed, and where their number of bytes stands."""
ATTRIBUTE_BYTES = 64
Grid = tuple[int, int, int]


class KernelCall(NamedTuple):
    """A kernel node. `arguments` are copies of each parameter's bytes; `attributes` name what else the launch asked
    for and no program can hold."""

    function: int
    symbol: str
    grid: Grid
    block: Grid
    shared: int
    arguments: tuple[bytes, ...]
    attributes: tuple[str, ...] = ()


class Edge(NamedTuple):
    """`target` waits for `source` (node handles); ports and type as in CUgraphEdgeData."""

    source: int
    target: int
    from_port: int = 0
    to_port: int = 0
    type: int = 0


class GraphSource(Protocol):
    """What there is to read of a graph: of one in the driver, or of one written down in a test."""

    def nodes(self) -> list[int]: ...

    def node_type(self, node: int) -> int: ...

    def kernel(self, node: int) -> KernelCall: ...

    def edges(self) -> list[Edge]: ...


class KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        *(("func", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared", c_uint)),
        *(("params", POINTER(c_void_p)), ("extra", POINTER(c_void_p)), ("kern", c_void_p), ("ctx", c_void_p)),
    )


class EdgeData(Structure):
    """CUgraphEdgeData."""

    _fields_ = (("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5))


class DriverGraph:
    """Reads the CUgraph `handle`, which must live meanwhile. `library` stands in for libcuda in tests.

    Every method raises LoweringError with the driver's word for what went wrong.
    """

    def __init__(self, handle: int, library: Any = None) -> None:
        self._handle = c_void_p(handle)
        self._cuda = library if library is not None else load_library()
        self._layouts: dict[int, tuple[tuple[int, int], ...]] = {}

    def nodes(self) -> list[int]:
        count = c_size_t()
        self._call("cuGraphGetNodes", self._handle, None, byref(count))
        nodes = (c_void_p * count.value)()
        self._call("cuGraphGetNodes", self._handle, nodes, byref(count))
        return [int(node or 0) for node in nodes]

    def edges(self) -> list[Edge]:
        count = c_size_t()
        self._call("cuGraphGetEdges_v2", self._handle, None, None, None, byref(count))
        if not count.value:
            return []  # asked for no edges, the driver takes the empty arrays for a mistake
        sources, targets = (c_void_p * count.value)(), (c_void_p * count.value)()
        data = (EdgeData * count.value)()
        self._call("cuGraphGetEdges_v2", self._handle, sources, targets, data, byref(count))
        return [
            Edge(int(source or 0), int(target or 0), found.from_port, found.to_port, found.type)
            for source, target, found in zip(sources, targets, data, strict=True)
        ]

    def node_type(self, node: int) -> int:
        kind = c_int()
        self._call("cuGraphNodeGetType", c_void_p(node), byref(kind))
        return kind.value

    def kernel(self, node: int) -> KernelCall:
        params = KernelParams()
        self._call("cuGraphKernelNodeGetParams_v2", c_void_p(node), byref(params))
        function = params.func or self._function(params.kern)
        symbol = c_char_p()
        self._call("cuFuncGetName", byref(symbol), c_void_p(function))
        grid, block = tuple(params.grid), tuple(params.block)
        arguments = self._arguments(params, self._layout(function))
        name = (symbol.value or b"").decode()
        return KernelCall(function, name, grid, block, params.shared, arguments, self._attributes(node))

    def _function(self, kern: int | None) -> int:
        """The function of a node that was added by kernel: `kern` is only set where `func` is null."""
        function = c_void_p()
        self._call("cuKernelGetFunction", byref(function), c_void_p(kern))
        return int(function.value or 0)

    def _layout(self, function: int) -> tuple[tuple[int, int], ...]:
        """(offset, size) of each of a function's parameters, in bytes."""
        if function not in self._layouts:
            offset, size, found = c_size_t(), c_size_t(), list[tuple[int, int]]()
            while not (code := self._info(function, len(found), offset, size)):
                found.append((offset.value, size.value))
            if code != INVALID_VALUE:  # which says that there is no such parameter
                raise self._failure("cuFuncGetParamInfo", code)
            self._layouts[function] = tuple(found)
        return self._layouts[function]

    def _info(self, function: int, index: int, offset: c_size_t, size: c_size_t) -> int:
        return int(self._cuda.cuFuncGetParamInfo(c_void_p(function), c_size_t(index), byref(offset), byref(size)))

    def _arguments(self, params: KernelParams, layout: tuple[tuple[int, int], ...]) -> tuple[bytes, ...]:
        """Copies at once: the arrays are the driver's, and gone with the node."""
        if not layout:
            return ()
        if params.params:
            return tuple(ctypes.string_at(params.params[i], size) for i, (_, size) in enumerate(layout))
        packed = _packed(params.extra)
        if len(packed) < max(offset + size for offset, size in layout):
            raise LoweringError("a kernel node's arguments are neither listed nor in one buffer; launch it otherwise")
        return tuple(packed[offset : offset + size] for offset, size in layout)

    def _attributes(self, node: int) -> tuple[str, ...]:
        return tuple(name for name, (number, words) in ATTRIBUTES.items() if words(self._attribute(node, number)))

    def _attribute(self, node: int, number: int) -> memoryview:
        """A launch attribute as 32-bit words; zeros where the driver reports none."""
        value = (c_ubyte * ATTRIBUTE_BYTES)()
        code = self._cuda.cuGraphKernelNodeGetAttribute(c_void_p(node), c_int(number), byref(value))
        return memoryview(bytes(ATTRIBUTE_BYTES) if code else bytes(value)).cast("I")

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            raise self._failure(name, code)

    def _failure(self, name: str, code: int) -> LoweringError:
        word = c_char_p()
        self._cuda.cuGetErrorName(c_int(code), byref(word))
        text = (word.value or b"unknown").decode()
        return LoweringError(f"{name}: {text} ({code}) while a captured graph was read; keep the graph alive meanwhile")


ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "access policy window": (1, lambda words: words[2] | words[3]),  # num_bytes, behind an address
    "cooperative launch": (2, lambda words: words[0]),
    "cluster": (4, lambda words: max(words[:3]) > 1),
    "device-side updates": (13, lambda words: words[0]),
}
"""Launch attributes that change what a node does: numbers of CUlaunchAttributeID, and when a value counts as set."""


def load_library() -> Any:
    """libcuda. LoweringError where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise LoweringError(f"no CUDA driver on this machine ({error}); capture where there is a GPU") from None


def _packed(extra: Any) -> bytes:
    """The buffer of an `extra` list of tags and values that ends with 0; nothing where there is none."""
    found: dict[int, int] = {}
    place = 0
    while extra and (tag := extra[place]):
        found[tag] = extra[place + 1] or 0
        place += 2
    if not found.get(BUFFER) or not found.get(BUFFER_BYTES):
        return b""
    return ctypes.string_at(found[BUFFER], c_size_t.from_address(found[BUFFER_BYTES]).value)
