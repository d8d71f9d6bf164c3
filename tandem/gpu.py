"""The NVIDIA GPUs of this machine: name, compute capability, size, driver. Asks libcuda alone; a context is made only
by `wake`, for who is about to use one.

Knows nothing of bundles: `tandem.artifacts.fit` compares these facts with what a bundle asks for.
"""

from __future__ import annotations

import ctypes
import os
import threading
import uuid
from contextlib import suppress
from ctypes import byref, c_char, c_int, c_size_t, c_ubyte, c_uint64
from dataclasses import dataclass
from typing import Any

from tandem.device import cuda_device, slug
from tandem.libcuda import LIBRARY

PATIENCE_S = 60.0
"""Waking eight GPUs takes some ten seconds; a driver that is silent for longer is taken for a broken one."""
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
"""Numbers of `CUdevice_attribute` in cuda.h."""
_NAME_BYTES, _UUID_BYTES = 256, 16


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU this process may use.

    `index` counts the visible ones, `name` is as the driver spells it and `product` its slug (`nvidia-h200`),
    `capability` such as 9.0, `memory` is in bytes, `driver` the newest CUDA that the driver speaks, such as 13.0.
    """

    index: int
    name: str
    product: str
    capability: str
    multiprocessors: int
    memory: int
    driver: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Survey:
    """The GPUs there are and, where there are none, what there is instead: "none", "no NVIDIA driver"."""

    gpus: tuple[Gpu, ...]
    instead: str = ""


def device_name(gpu: Gpu) -> str:
    """The name of a GPU as a device to compile for, such as `cuda-sm90`."""
    return cuda_device(gpu.capability)


def gpus(library: Any = None) -> tuple[Gpu, ...]:
    """The GPUs this process may use, in the driver's order, which obeys CUDA_VISIBLE_DEVICES. Raises nothing."""
    return survey(library).gpus


def survey(library: Any = None) -> Survey:
    """`gpus`, and why there are none. `library` stands in for libcuda in tests. Ends within PATIENCE_S."""
    answers: list[Survey] = []
    asked = threading.Thread(target=lambda: answers.append(_ask(library)), name="libcuda", daemon=True)
    asked.start()
    asked.join(PATIENCE_S)
    return answers[0] if answers else Survey((), f"an NVIDIA driver that is silent for {PATIENCE_S:.0f} s")


def wake(library: Any = None) -> threading.Thread:
    """Starts a thread that readies the driver and, where just one GPU is visible, that GPU's primary context.

    Both take tenths of a second in which Python can do something else; the context then lasts as long as the process.
    Nothing is raised: whoever uses the GPU next is told what is wrong with it. `library` as of `survey`.
    """
    waking = threading.Thread(target=_wake, args=(library,), name="wake", daemon=True)
    waking.start()
    return waking


class _Failed(Exception):
    """A call of the driver that did not end well; `code` as in cuda.h."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: error {code}")
        self.code = code


_NO_DEVICE = 100


def _ask(library: Any) -> Survey:
    try:
        cuda = library if library is not None else ctypes.CDLL(LIBRARY)
    except OSError:
        return Survey((), "no NVIDIA driver")
    try:
        _start(cuda)
        version = _number(cuda, "cuDriverGetVersion")
        driver = f"{version // 1000}.{version % 1000 // 10}"
        found = tuple(_gpu(cuda, index, driver) for index in range(_number(cuda, "cuDeviceGetCount")))
    except _Failed as error:
        return Survey((), "none" if error.code == _NO_DEVICE else f"an NVIDIA driver that fails ({error})")
    except AttributeError as error:
        return Survey((), f"another library called {LIBRARY} ({error})")
    return Survey(found, "" if found else "none")


def _start(cuda: Any) -> None:
    # Read by cuInit, once in a process: whoever asks first decides for the executor too, which wants it so.
    os.environ["CUDA_MODULE_LOADING"] = "EAGER"
    _call(cuda, "cuInit", 0)


def _wake(library: Any) -> None:
    with suppress(OSError, AttributeError, _Failed):
        cuda = library if library is not None else ctypes.CDLL(LIBRARY)
        _start(cuda)
        if _number(cuda, "cuDeviceGetCount") == 1:
            _call(cuda, "cuDevicePrimaryCtxRetain", byref(c_uint64()), _number(cuda, "cuDeviceGet", 0))


def _gpu(cuda: Any, index: int, driver: str) -> Gpu:
    device = _number(cuda, "cuDeviceGet", index)
    name, raw, memory = (c_char * _NAME_BYTES)(), (c_ubyte * _UUID_BYTES)(), c_size_t()
    _call(cuda, "cuDeviceGetName", name, _NAME_BYTES, device)
    _call(cuda, "cuDeviceTotalMem_v2", byref(memory), device)
    _call(cuda, "cuDeviceGetUuid_v2", raw, device)
    spelt = name.value.decode(errors="replace")
    major, minor = (_number(cuda, "cuDeviceGetAttribute", which, device) for which in (_MAJOR, _MINOR))
    return Gpu(
        index=index,
        name=spelt,
        product=slug(spelt),
        capability=f"{major}.{minor}",
        multiprocessors=_number(cuda, "cuDeviceGetAttribute", _MULTIPROCESSORS, device),
        memory=memory.value,
        driver=driver,
        uuid=str(uuid.UUID(bytes=bytes(raw))),
    )


def _call(cuda: Any, name: str, *arguments: Any) -> None:
    if code := getattr(cuda, name)(*arguments):
        raise _Failed(name, code)


def _number(cuda: Any, name: str, *arguments: int) -> int:
    """What a call writes to its first argument, an int."""
    value = c_int()
    _call(cuda, name, byref(value), *arguments)
    return value.value
