"""The driver's calls of a graph against a library written in Python: what is asked, copied and refused."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_size_t, c_void_p

import pytest

from tandem.compile.cuda.graph_source import DriverGraph, Edge, EdgeData, KernelCall, KernelParams
from tandem.errors import LoweringError

FUNCTION, KERN = 0xF00, 0xE00
LAYOUT = ((0, 8), (8, 4), (16, 8))
VALUES = (b"\1" * 8, b"\2" * 4, b"\3" * 8)


class Library:
    """libcuda for a graph of two kernel nodes, 11 and 12, with a programmatic edge."""

    def __init__(self, *, packed: bool = False, kern: bool = False, attributes: dict[int, bytes] | None = None) -> None:
        self.packed, self.kern, self.attributes = packed, kern, attributes or {}
        self.buffers = [ctypes.create_string_buffer(value, len(value)) for value in VALUES]
        self.list = (c_void_p * 3)(*map(ctypes.addressof, self.buffers))
        self.block = ctypes.create_string_buffer(24)
        for (offset, size), value in zip(LAYOUT, VALUES, strict=True):
            self.block[offset : offset + size] = value
        self.bytes = c_size_t(24)
        self.extra = (c_void_p * 5)(1, ctypes.addressof(self.block), 2, ctypes.addressof(self.bytes), 0)

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = 2
        if nodes:
            nodes[0], nodes[1] = 11, 12
        return 0 if graph.value == 0xA0 else 400

    def cuGraphGetEdges_v2(self, graph, sources, targets, data, count):
        count._obj.value = 1
        if sources:
            sources[0], targets[0], data[0] = 11, 12, EdgeData(1, 0, 1)
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = {11: 0, 12: 5}[node.value]
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, params):
        filled: KernelParams = params._obj
        filled.func, filled.kern = (None, KERN) if self.kern else (FUNCTION, None)
        filled.grid[:], filled.block[:], filled.shared = (4, 5, 6), (32, 2, 1), 1024
        if self.packed:
            filled.extra = ctypes.cast(self.extra, POINTER(c_void_p))
        else:
            filled.params = ctypes.cast(self.list, POINTER(c_void_p))
        return 0

    def cuKernelGetFunction(self, function, kern):
        function._obj.value = FUNCTION
        return 0 if kern.value == KERN else 400

    def cuFuncGetName(self, name, function):
        name._obj.value = b"swiglu"
        return 0 if function.value == FUNCTION else 400

    def cuFuncGetParamInfo(self, function, index, offset, size):
        if index.value >= len(LAYOUT):
            return 1
        offset._obj.value, size._obj.value = LAYOUT[index.value]
        return 0

    def cuGraphKernelNodeGetAttribute(self, node, number, value):
        if number.value not in self.attributes:
            return 1
        ctypes.memmove(value._obj, self.attributes[number.value], len(self.attributes[number.value]))
        return 0

    def cuGetErrorName(self, code, name):
        name._obj.value = b"CUDA_ERROR_INVALID_HANDLE"
        return 0


def test_nodes_types_and_edges():
    graph = DriverGraph(0xA0, Library())
    assert graph.nodes() == [11, 12]
    assert [graph.node_type(node) for node in graph.nodes()] == [0, 5]
    assert graph.edges() == [Edge(11, 12, from_port=1, to_port=0, type=1)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kern", [False, True])
def test_a_kernels_arguments_are_copied_in_either_form(packed, kern):
    library = Library(packed=packed, kern=kern)
    call = DriverGraph(0xA0, library).kernel(11)
    library.block[:] = bytes(24)
    for buffer in library.buffers:
        ctypes.memset(buffer, 0, len(buffer))
    assert call == KernelCall(FUNCTION, "swiglu", (4, 5, 6), (32, 2, 1), 1024, VALUES)


def test_arguments_that_are_nowhere_are_refused():
    library = Library(packed=True)
    library.bytes.value = 16
    with pytest.raises(LoweringError, match="neither listed nor in one buffer"):
        DriverGraph(0xA0, library).kernel(11)


@pytest.mark.parametrize(
    ("number", "value", "names"),
    [
        (1, bytes(64), ()),
        (1, bytes(8) + b"\1" + bytes(55), ("access policy window",)),
        (2, b"\1" + bytes(63), ("cooperative launch",)),
        (4, b"\1\0\0\0\1\0\0\0\1" + bytes(55), ()),
        (4, b"\2\0\0\0\1\0\0\0\1" + bytes(55), ("cluster",)),
        (13, b"\1" + bytes(63), ("device-side updates",)),
    ],
)
def test_launch_attributes_are_named(number, value, names):
    assert DriverGraph(0xA0, Library(attributes={number: value})).kernel(11).attributes == names


def test_the_drivers_word_is_in_the_error():
    with pytest.raises(LoweringError, match=r"cuGraphGetNodes: CUDA_ERROR_INVALID_HANDLE \(400\)"):
        DriverGraph(0xB0, Library()).nodes()


def test_no_driver_is_said(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(LoweringError, match=r"no CUDA driver .*libcuda\.so\.1"):
        DriverGraph(0xA0)
