"""The CUDA driver's library: its functions' signatures, and its error numbers as words and remedies.

Signatures and numbers are those of cuda.h (CUDA 13.0), which older drivers share as far back as they have the symbol.
Knows nothing of what the calls are for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from tandem.errors import DeviceError

LIBRARY = "libcuda.so.1"
OLDEST = "driver 550 (CUDA 12.4)"
"""The first with every call of SIGNATURES."""

_handle, _out, _address = c_void_p, c_void_p, c_uint64
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_out,),
    "cuGetErrorName": (c_int, _out),
    "cuGetErrorString": (c_int, _out),
    "cuDeviceGetCount": (_out,),
    "cuDeviceGet": (_out, c_int),
    "cuDeviceGetName": (_out, c_int, c_int),
    "cuDeviceGetAttribute": (_out, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_out, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (_handle,),
    "cuMemGetInfo_v2": (_out, _out),
    "cuMemAlloc_v2": (_out, c_size_t),
    "cuMemFree_v2": (_address,),
    "cuMemHostAlloc": (_out, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemsetD8Async": (_address, c_ubyte, c_size_t, _handle),
    "cuMemcpyHtoDAsync_v2": (_address, c_void_p, c_size_t, _handle),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _address, c_size_t, _handle),
    "cuStreamCreate": (_out, c_uint),
    "cuStreamSynchronize": (_handle,),
    "cuStreamDestroy_v2": (_handle,),
    "cuEventCreate": (_out, c_uint),
    "cuEventRecord": (_handle, _handle),
    "cuEventSynchronize": (_handle,),
    "cuEventElapsedTime": (_out, _handle, _handle),
    "cuEventDestroy_v2": (_handle,),
    "cuModuleLoadData": (_out, c_void_p),
    "cuModuleUnload": (_handle,),
    "cuModuleGetFunction": (_out, _handle, c_char_p),
    "cuFuncLoad": (_handle,),
    "cuFuncSetAttribute": (_handle, c_int, c_int),
    "cuFuncGetParamInfo": (_handle, c_size_t, _out, _out),
    "cuGraphCreate": (_out, c_uint),
    "cuGraphDestroy": (_handle,),
    "cuGraphAddNode_v2": (_out, _handle, c_void_p, c_void_p, c_size_t, c_void_p),
    "cuGraphInstantiateWithFlags": (_out, _handle, c_uint64),
    "cuGraphUpload": (_handle, _handle),
    "cuGraphLaunch": (_handle, _handle),
    "cuGraphExecDestroy": (_handle,),
}
"""What the driver's functions take, by the name of the symbol."""
QUICK = ("cuGraphAddNode_v2",)
"""Calls by the thousand, over sooner than threads hand the interpreter's lock to each other: they keep it."""

OUT_OF_MEMORY, INVALID_VALUE, INVALID_IMAGE, NO_BINARY_FOR_GPU, NOT_FOUND = 2, 1, 200, 209, 500
REMEDIES = {
    OUT_OF_MEMORY: "free memory on this GPU, or ask for a shorter context or fewer lanes",
    34: "the library found is a stub: put the driver's own libcuda.so.1 first",
    100: "no GPU is visible: look at nvidia-smi and at CUDA_VISIBLE_DEVICES",
    101: "there is no GPU of that number: look at nvidia-smi and at CUDA_VISIBLE_DEVICES",
    INVALID_IMAGE: "the bundle's kernels are damaged: copy or compile it again",
    NO_BINARY_FOR_GPU: "compile the bundle for this GPU",
    NOT_FOUND: "compile the bundle again",
    802: "the system is not ready: start nvidia-fabricmanager, then try again",
    803: "the driver and its library differ: restart the machine, or the container with this driver",
    804: "this GPU does not take a compatibility library: update the driver itself",
}
"""By the driver's error number: what to do."""
HOST_ALLOC = "cuMemHostAlloc"
PINNED = "free memory of the host, or give this process or container more: copies need some 100 MiB pinned"
BROKEN = range(700, 800)
"""Numbers of errors after which a context takes no more calls."""
WRONG = "a kernel went wrong: restart the process, and report it if it comes again"
ELSE = "look at nvidia-smi and at the kernel log (dmesg)"


def functions(library: Any = None) -> dict[str, Callable[..., int]]:
    """Every function of SIGNATURES, from libcuda or from what stands in for it. DeviceError where one is missing."""
    waiting, quick = (library, library) if library is not None else (_open(ctypes.CDLL), _open(ctypes.PyDLL))
    found: dict[str, Callable[..., int]] = {}
    for name, types in SIGNATURES.items():
        try:
            function = getattr(quick if name in QUICK else waiting, name)
        except AttributeError:
            raise DeviceError(f"{LIBRARY} has no {name}: update to {OLDEST} or later", call=name) from None
        function.argtypes, function.restype = types, c_int
        found[name] = function
    return found


def _open(kind: type[ctypes.CDLL]) -> Any:
    try:
        return kind(LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"no NVIDIA driver here ({error}); install {OLDEST} or later, or serve a bundle compiled for this CPU"
        ) from None


def failure(found: dict[str, Callable[..., int]], call: str, code: int) -> DeviceError:
    """The error that `code` from `call` stands for."""
    name, text = c_char_p(), c_char_p()
    found["cuGetErrorName"](code, ctypes.byref(name))
    found["cuGetErrorString"](code, ctypes.byref(text))
    said = f"{(name.value or b'error').decode()} ({code}: {(text.value or b'unknown').decode()})"
    remedy = REMEDIES.get(code, WRONG if code in BROKEN else ELSE)
    if (call, code) == (HOST_ALLOC, OUT_OF_MEMORY):
        remedy = PINNED
    return DeviceError(f"{call} says {said}; {remedy}", call=call, code=code)
