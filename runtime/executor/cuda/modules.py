"""Kernels on the device: each cubin loaded once, its functions held against what programs say of them.

Knows nothing of launches.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import numpy as np

from tandem.artifacts.program import Kernel, Program
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, DeviceError
from tandem.libcuda import INVALID_IMAGE, NO_BINARY_FOR_GPU, NOT_FOUND

FREE_SHARED = 48 << 10
"""Dynamic shared memory that a function may use without being asked, in bytes."""
_FLAGS, _ABI, _NEWER_ABI = slice(48, 52), 8, 8
"""Where an ELF header holds its flags and its ABI's version; from which version on the flags have another form."""
_HEADER = struct.Struct("<4s14xH12xQQ4x2xHHHH")
"""What of an ELF header says where its tables end: magic, machine, their places, and size and count of both."""
_MAGIC, _CUDA = b"\x7fELF", 190


def architecture(cubin: bytes) -> int:
    """The compute capability a cubin is for, as 10 * major + minor, from its ELF header."""
    flags = int.from_bytes(cubin[_FLAGS], "little")
    return flags >> 8 & 0xFF if cubin[_ABI : _ABI + 1] >= bytes([_NEWER_ABI]) else flags & 0xFF


def is_cubin(data: bytes) -> bool:
    """Whether `data` is a whole binary for a GPU. The driver is told no length, and would compile what is PTX."""
    if len(data) < _HEADER.size:
        return False
    magic, machine, programs, sections, program_bytes, num_programs, section_bytes, num_sections = _HEADER.unpack_from(
        data
    )
    end = max(programs + program_bytes * num_programs, sections + section_bytes * num_sections)
    return bool((magic, machine) == (_MAGIC, _CUDA) and end <= len(data))


class Modules:
    """Functions of cubins, which `cubin` gives for a sha256. The context must be current wherever it is called.

    `programs` are all that will ever be asked for: from them comes the most shared memory of each function.
    """

    def __init__(
        self, driver: Driver, cubin: Callable[[str], bytes], programs: Iterable[Program], capability: int
    ) -> None:
        self._driver, self._cubin, self._capability = driver, cubin, capability
        self._stack = ExitStack()
        self._modules: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._sizes: dict[tuple[str, str], tuple[int, ...]] = {}
        self._shared: dict[tuple[str, str], int] = {}
        self.loads, self.ms = 0, 0.0
        for kernel in (kernel for program in programs for kernel in program.kernels):
            key = kernel.binary, kernel.symbol
            self._shared[key] = max(kernel.shared, self._shared.get(key, 0))

    def functions(self, program: Program) -> np.ndarray:
        """Handles uint64 [kernels] of a program's kernels.

        BundleMismatch for a cubin that this GPU does not take, BundleCorrupt for one that holds another kernel.
        """
        began = time.perf_counter()
        found = np.array([self._function(kernel) for kernel in program.kernels], np.uint64)
        self.ms += (time.perf_counter() - began) * 1e3
        return found

    def _function(self, kernel: Kernel) -> int:
        key = kernel.binary, kernel.symbol
        if key not in self._functions:
            self._functions[key] = self._look_up(kernel)
        if (held := self._sizes[key]) != tuple(kernel.param_sizes):
            raise BundleCorrupt(
                f"{kernel.binary}.cubin: {kernel.symbol} takes arguments of {_sizes(held)} bytes, a program gives "
                f"{_sizes(kernel.param_sizes)}; rebuild the bundle"
            )
        return self._functions[key]

    def _look_up(self, kernel: Kernel) -> int:
        key = kernel.binary, kernel.symbol
        module = self._module(kernel.binary)
        try:
            function = self._driver.function(module, kernel.symbol)
        except DeviceError as error:
            if error.code == NOT_FOUND:
                raise BundleCorrupt(f"{kernel.binary}.cubin: no kernel {kernel.symbol}; rebuild the bundle") from None
            raise
        self._sizes[key] = self._driver.param_sizes(function)
        if self._shared[key] > FREE_SHARED:
            self._driver.set_dynamic_shared(function, self._shared[key])
        self._driver.prefer_shared(function)  # all of them: the blocks of one kernel start beside those of another
        return function

    def _module(self, binary: str) -> int:
        if binary not in self._modules:
            cubin = self._cubin(binary)
            if not is_cubin(cubin):
                raise BundleCorrupt(f"{binary}.cubin: no whole binary for a GPU; copy or compile the bundle again")
            try:
                module = self._driver.module(cubin)
            except DeviceError as error:
                if error.code in (INVALID_IMAGE, NO_BINARY_FOR_GPU):
                    raise self._refused(binary, cubin) from None
                raise
            self._stack.callback(self._driver.module_unload, module)
            self._modules[binary] = module
            self.loads += 1
        return self._modules[binary]

    def _refused(self, binary: str, cubin: bytes) -> BundleMismatch | BundleCorrupt:
        if (wanted := architecture(cubin)) == self._capability:
            return BundleCorrupt(f"{binary}.cubin: the driver cannot read it; copy or compile the bundle again")
        return BundleMismatch(
            f"{binary}.cubin: for compute capability {_dotted(wanted)}, this GPU has {_dotted(self._capability)}; "
            "compile the bundle for this GPU"
        )

    def close(self) -> None:
        self._stack.close()


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _sizes(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes)) or "no"
