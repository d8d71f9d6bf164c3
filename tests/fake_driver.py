"""A libcuda in Python: real C callbacks over host memory, so that `tandem.driver` is called as it is on a GPU.

Copies, fills and launches happen when they are waited for, as late as the real driver may. What may not be done, such
as using what was freed or calling without a context, is noted in `faults`, whatever the caller makes of the answer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_uint64

from tandem.driver import Driver
from tests.fake_calls import Calls
from tests.fake_device import Function, Graph, Memory, Node, Stream, Work, read_cubin, read_node

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_DEVICE = 1, 2, 100, 101
INVALID_IMAGE, WRONG_GPU, NOT_FOUND, LAUNCH_FAILED = 200, 209, 500, 719
NAMES = {1: b"CUDA_ERROR_INVALID_VALUE", 2: b"CUDA_ERROR_OUT_OF_MEMORY", 719: b"CUDA_ERROR_LAUNCH_FAILED"}


class FakeCuda(Calls):
    """One GPU of `total` bytes, or `devices` of them that are all the same one.

    `run` is what launching a graph does, given its nodes in order.
    """

    def __init__(
        self,
        *,
        total: int = 1 << 33,
        capability: int = 90,
        devices: int = 1,
        fail_at: int | None = None,
        code: int = LAUNCH_FAILED,
        run: Callable[[list[Node]], None] = lambda nodes: None,
        missing: Sequence[str] = (),
    ) -> None:
        super().__init__(fail_at=fail_at, code=code, missing=missing)
        self.total, self.capability, self.devices, self.run = total, capability, devices, run
        self.functions: dict[int, Function] = {}
        self.carveouts: dict[str, int] = {}
        self.shared: dict[str, int] = {}
        self.carveouts: dict[str, int] = {}
        self.uploaded: set[int] = set()

    def _cuInit(self, flags: int) -> int | None:
        return None if self.devices else NO_DEVICE

    def _cuDriverGetVersion(self, out: int) -> None:
        c_int.from_address(out).value = 13000

    def _cuGetErrorName(self, code: int, out: int) -> None:
        c_char_p.from_address(out).value = NAMES.get(code, b"CUDA_ERROR_UNKNOWN")

    def _cuGetErrorString(self, code: int, out: int) -> None:
        c_char_p.from_address(out).value = b"as the fake says"

    def _cuDeviceGetCount(self, out: int) -> None:
        c_int.from_address(out).value = self.devices

    def _cuDeviceGet(self, out: int, ordinal: int) -> int | None:
        c_int.from_address(out).value = 7 + ordinal
        return None if 0 <= ordinal < self.devices else INVALID_DEVICE

    def _cuDeviceGetName(self, out: int, room: int, device: int) -> None:
        ctypes.memmove(out, b"Fake GPU\0", 9)

    def _cuDeviceGetAttribute(self, out: int, which: int, device: int) -> None:
        c_int.from_address(out).value = {75: self.capability // 10, 76: self.capability % 10}[which]

    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        held = self.live["context"].get(device, 0)
        self._make("context", out, held + 1, device)

    def _cuDevicePrimaryCtxRelease(self, device: int) -> None:
        held = self._end("context", device) - 1
        if held:
            self.live["context"][device] = held
        elif left := self.left():
            raise LookupError(f"the context ends with {left}")

    def _cuCtxSetCurrent(self, context: int | None) -> None:
        self._use("context", context)
        self.enter(context or 0)

    def _cuMemGetInfo(self, free: int, total: int) -> None:
        used = sum(memory.nbytes for memory in self.live["memory"].values())
        c_uint64.from_address(free).value, c_uint64.from_address(total).value = self.total - used, self.total

    def _cuMemAlloc(self, out: int, nbytes: int) -> int | None:
        used = sum(memory.nbytes for memory in self.live["memory"].values())
        if not nbytes or used + nbytes > self.total:
            return OUT_OF_MEMORY if nbytes else INVALID_VALUE
        memory = Memory(nbytes)
        self._make("memory", out, memory, memory.address)
        return None

    def _cuMemFree(self, address: int) -> None:
        for stream in self.live["stream"].values():
            stream.drain()
        self._end("memory", address)

    def _cuMemHostAlloc(self, out: int, nbytes: int, flags: int) -> None:
        memory = Memory(nbytes)
        self._make("pinned", out, memory, memory.address)

    def _cuMemFreeHost(self, address: int) -> None:
        memory: Memory = self._end("pinned", address)
        for stream in self.live["stream"].values():
            if any(memory.holds(place, nbytes) for work in stream.queue for place, nbytes in work.touches):
                raise LookupError("pinned memory ends before the copy that uses it")

    def _queue(self, stream: int | None, do: Callable[[], object], *touches: tuple[int, int]) -> None:
        self._use("stream", stream).put(Work(do, touches))

    def _cuMemsetD8Async(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._within("memory", address, nbytes)
        self._queue(stream, lambda: ctypes.memset(address, byte, nbytes), (address, nbytes))

    def _cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._within("memory", target, nbytes)
        self._within("pinned", source, nbytes)
        self._copy(target, source, nbytes, stream)

    def _cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._within("memory", source, nbytes)
        self._copy(target, source, nbytes, stream)

    def _copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._queue(stream, lambda: ctypes.memmove(target, source, nbytes), (target, nbytes), (source, nbytes))

    def _cuStreamCreate(self, out: int, flags: int) -> None:
        self._make("stream", out, Stream())

    def _cuStreamSynchronize(self, stream: int) -> None:
        self._use("stream", stream).drain()

    def _cuStreamDestroy(self, stream: int) -> None:
        self._end("stream", stream).drain()

    def _cuEventCreate(self, out: int, flags: int) -> None:
        self._make("event", out, (Stream(), 0))

    def _cuEventRecord(self, event: int, stream: int) -> None:
        self._use("event", event)
        self.live["event"][event] = (self._use("stream", stream), self._use("stream", stream).queued)

    def _cuEventSynchronize(self, event: int) -> None:
        stream, mark = self._use("event", event)
        stream.drain(mark)

    def _cuEventElapsedTime(self, out: int, start: int, end: int) -> None:
        marks = self._use("event", start)[1], self._use("event", end)[1]
        ctypes.c_float.from_address(out).value = float(marks[1] - marks[0])

    def _cuEventDestroy(self, event: int) -> None:
        self._end("event", event)

    def _cuModuleLoadData(self, out: int, image: int) -> int | None:
        cubin = read_cubin(image)
        if cubin is None or cubin[0] != self.capability:
            return INVALID_IMAGE if cubin is None else WRONG_GPU
        self._make("module", out, cubin[1])
        return None

    def _cuModuleUnload(self, module: int) -> None:
        self._end("module", module)
        for graph in self.live["executable"].values():
            if any(node.function.module == module for node in graph.nodes.values()):
                raise LookupError("a module ends before a graph that uses it")
        self.functions = {handle: found for handle, found in self.functions.items() if found.module != module}

    def _cuModuleGetFunction(self, out: int, module: int, symbol: bytes) -> int | None:
        kernels = self._use("module", module)
        if symbol.decode() not in kernels:
            return NOT_FOUND
        handle = next(self.handles)
        self.functions[handle] = Function(module, symbol.decode(), kernels[symbol.decode()])
        c_uint64.from_address(out).value = handle
        return None

    def _cuFuncLoad(self, function: int) -> None:
        _ = self.functions[function]

    def _cuFuncSetAttribute(self, function: int, which: int, value: int) -> int | None:
        if which == 9 and 0 <= value <= 100:  # how much of it shall be shared memory, in percent
            self.carveouts[self.functions[function].symbol] = value
            return None
        if which != 8 or value > 227 << 10:
            return INVALID_VALUE
        self.shared[self.functions[function].symbol] = value
        return None

    def _cuFuncGetParamInfo(self, function: int, which: int, offset: int, size: int) -> int | None:
        sizes = self.functions[function].sizes
        if which >= len(sizes):
            return INVALID_VALUE
        c_uint64.from_address(offset).value, c_uint64.from_address(size).value = 8 * which, sizes[which]
        return None

    def _cuGraphCreate(self, out: int, flags: int) -> None:
        self._make("graph", out, Graph())

    def _cuGraphDestroy(self, graph: int) -> None:
        self._end("graph", graph)

    def _cuGraphAddNode(
        self, out: int, graph: int, sources: int | None, data: int | None, count: int, params: int
    ) -> int | None:
        held: Graph = self._use("graph", graph)
        node = read_node(params, self.functions)
        if isinstance(node, str):
            raise LookupError(node)
        if not all(node.grid) or not all(node.block) or node.shared > max(48 << 10, self._most(node)):
            return INVALID_VALUE
        handle = next(self.handles)
        for i in range(count):
            source = c_uint64.from_address((sources or 0) + 8 * i).value
            if source not in held.nodes:
                raise LookupError(f"edge from {source:#x}, which is no node")
            held.edges.append((source, handle, ctypes.string_at((data or 0) + 8 * i, 8)))
        held.nodes[handle] = node
        c_uint64.from_address(out).value = handle
        return None

    def _most(self, node: Node) -> int:
        return self.shared.get(node.function.symbol, 0)

    def _cuGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> None:
        held: Graph = self._use("graph", graph)
        self._make("executable", out, Graph(dict(held.nodes), list(held.edges)))

    def _cuGraphUpload(self, executable: int, stream: int) -> None:
        self._use("executable", executable)
        self._queue(stream, lambda: self.uploaded.add(executable))

    def _cuGraphLaunch(self, executable: int, stream: int) -> None:
        graph: Graph = self._use("executable", executable)
        for node in graph.nodes.values():
            self._use("module", node.function.module)
        if executable not in self.uploaded:
            raise LookupError("a graph runs that was not uploaded")
        self._queue(stream, lambda: self.run(list(graph.nodes.values())), (executable, 0))

    def _cuGraphExecDestroy(self, executable: int) -> None:
        self._end("executable", executable)
        if any((executable, 0) in work.touches for stream in self.live["stream"].values() for work in stream.queue):
            raise LookupError("a graph ends before its launch")


@contextmanager
def driver_on(cuda: FakeCuda) -> Iterator[Driver]:
    """A driver with the device's context current, and at its end nothing left of it and no fault noted."""
    made = Driver(cuda)
    device = made.device(0)
    made.set_current(made.retain(device))
    yield made
    made.release(device)
    assert (cuda.faults, cuda.left()) == ([], {})
