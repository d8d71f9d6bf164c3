"""The CUDA driver API through ctypes: memory, streams, events, modules and graphs of one GPU, every call checked.

Handles and addresses are plain integers. Over libcuda itself, not `cuda-bindings`: a serving machine needs one package
less, and a graph's node is one call with integers in it, its structs being rows of numpy arrays. Knows nothing of
programs, bundles or Python threads: a context is current on the thread that made it so.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_float, c_int, c_size_t, c_uint64
from typing import Any

from tandem.errors import DeviceError
from tandem.libcuda import INVALID_VALUE, failure, functions

NON_BLOCKING, DISABLE_TIMING = 1, 2
COMPUTE_CAPABILITY = (75, 76)
MAX_DYNAMIC_SHARED, SHARED_CARVEOUT = 8, 9
NAME_BYTES = 256


class Driver:
    """libcuda, initialised. Every method raises DeviceError with the call, the driver's word for it and what to do.

    `library` stands in for libcuda in tests. Lengths are in bytes, `stream` 0 is the default stream.
    """

    def __init__(self, library: Any = None) -> None:
        # Read by the process's first cuInit: functions are loaded with their module, not each by `function`.
        os.environ["CUDA_MODULE_LOADING"] = "EAGER"
        self._functions = functions(library)
        self.add_node, self._launch = self._functions["cuGraphAddNode_v2"], self._functions["cuGraphLaunch"]
        self._call("cuInit", 0)

    def error(self, call: str, code: int) -> DeviceError:
        """What `code` from `call` stands for, for those who call `add_node` themselves."""
        return failure(self._functions, call, code)

    def address(self, name: str) -> int:
        """Where a function of the driver lies, for native code."""
        return ctypes.cast(self._functions[name], ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    def _call(self, name: str, *arguments: Any) -> None:
        if code := self._functions[name](*arguments):
            raise self.error(name, code)

    def _made(self, name: str, *arguments: Any) -> int:
        """What a call writes to its first argument, 8 bytes."""
        made = c_uint64()
        self._call(name, ctypes.byref(made), *arguments)
        return made.value

    def _number(self, name: str, *arguments: Any) -> int:
        """What a call writes to its first argument, an int."""
        number = c_int()
        self._call(name, ctypes.byref(number), *arguments)
        return number.value

    def version(self) -> int:
        """The newest CUDA the driver knows: 1000 * major + 10 * minor."""
        return self._number("cuDriverGetVersion")

    def device_count(self) -> int:
        return self._number("cuDeviceGetCount")

    def device(self, ordinal: int) -> int:
        return self._number("cuDeviceGet", ordinal)

    def device_name(self, device: int) -> str:
        name = ctypes.create_string_buffer(NAME_BYTES)
        self._call("cuDeviceGetName", name, NAME_BYTES, device)
        return name.value.decode()

    def capability(self, device: int) -> int:
        """Compute capability as 10 * major + minor: 90 for an H200."""
        major, minor = (self._number("cuDeviceGetAttribute", which, device) for which in COMPUTE_CAPABILITY)
        return 10 * major + minor

    def retain(self, device: int) -> int:
        """The device's primary context, to be released once."""
        return self._made("cuDevicePrimaryCtxRetain", device)

    def release(self, device: int) -> None:
        self._call("cuDevicePrimaryCtxRelease_v2", device)

    def set_current(self, context: int) -> None:
        """Makes `context` the calling thread's."""
        self._call("cuCtxSetCurrent", context)

    def memory(self) -> tuple[int, int]:
        """(free, all) of the current context's device."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def alloc(self, nbytes: int) -> int:
        return self._made("cuMemAlloc_v2", nbytes)

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def host_alloc(self, nbytes: int) -> int:
        """Pinned host memory."""
        return self._made("cuMemHostAlloc", nbytes, 0)

    def host_free(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def fill(self, address: int, byte: int, nbytes: int, stream: int) -> None:
        self._call("cuMemsetD8Async", address, byte, nbytes, stream)

    def to_device(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Returns before the copy is made where `source` is pinned."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)

    def to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", target, source, nbytes, stream)

    def stream(self) -> int:
        """A stream that does not wait for the default one."""
        return self._made("cuStreamCreate", NON_BLOCKING)

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def stream_destroy(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", stream)

    def event(self, *, timing: bool = False) -> int:
        return self._made("cuEventCreate", 0 if timing else DISABLE_TIMING)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Between two recorded events made with `timing`."""
        ms = c_float()
        self._call("cuEventElapsedTime", ctypes.byref(ms), start, end)
        return ms.value

    def event_destroy(self, event: int) -> None:
        self._call("cuEventDestroy_v2", event)

    def module(self, image: bytes) -> int:
        """Loads a cubin into the current context."""
        return self._made("cuModuleLoadData", image)

    def module_unload(self, module: int) -> None:
        self._call("cuModuleUnload", module)

    def function(self, module: int, symbol: str) -> int:
        """A kernel, loaded to the last byte: no launch loads anything."""
        found = self._made("cuModuleGetFunction", module, symbol.encode())
        self._call("cuFuncLoad", found)
        return found

    def param_sizes(self, function: int) -> tuple[int, ...]:
        """Bytes of each of a kernel's parameters, in order."""
        offset, size, sizes = c_size_t(), c_size_t(), list[int]()
        info = self._functions["cuFuncGetParamInfo"]
        while not (code := info(function, len(sizes), ctypes.byref(offset), ctypes.byref(size))):
            sizes.append(size.value)
        if code != INVALID_VALUE:  # which says that there is no such parameter
            raise self.error("cuFuncGetParamInfo", code)
        return tuple(sizes)

    def set_dynamic_shared(self, function: int, nbytes: int) -> None:
        """The most dynamic shared memory a launch of `function` may ask for; 48 KiB until it is set."""
        self._call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, nbytes)

    def prefer_shared(self, function: int) -> None:
        """Asks for as much shared memory, and as little first-level cache, as a multiprocessor can be set to.

        Kernels that ask alike need no change of that between them, for which a multiprocessor must be empty.
        """
        self._call("cuFuncSetAttribute", function, SHARED_CARVEOUT, 100)

    def graph(self) -> int:
        return self._made("cuGraphCreate", 0)

    def graph_destroy(self, graph: int) -> None:
        self._call("cuGraphDestroy", graph)

    def instantiate(self, graph: int) -> int:
        """An executable graph, which does not need `graph` any more."""
        return self._made("cuGraphInstantiateWithFlags", graph, 0)

    def upload(self, executable: int, stream: int) -> None:
        """Sends what a launch needs to the device, so that the first is no slower than the next."""
        self._call("cuGraphUpload", executable, stream)

    def launch(self, executable: int, stream: int) -> None:
        if code := self._launch(executable, stream):
            raise self.error("cuGraphLaunch", code)

    def executable_destroy(self, executable: int) -> None:
        self._call("cuGraphExecDestroy", executable)
