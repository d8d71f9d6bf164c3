"""A program for `bench.gpu.driver_smoke`: two small Triton kernels in a chain, and a GPU to run it on.

Knows nothing of what is measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tandem.artifacts.program import CONSTANT, EDGE, LAUNCH, PARAM, Kernel, Program, Region, decode, encode
from tandem.driver import Driver
from tandem.kernels.cuda.order import begin
from tandem.runtime.executor.cuda import owned
from tandem.runtime.executor.cuda.modules import Modules

BLOCK, BLOCKS, WARPS = 256, 64, 4
SIZE = BLOCK * BLOCKS
NBYTES = 4 * SIZE
ADDED = (1.0, 2.0)


@triton.jit
def turn_and_add(x, y, ADD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """y[i] = x[SIZE - 1 - i] + ADD: each block reads what another block of the launch before wrote."""
    begin(PDL)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + SIZE - 1 - i) + ADD)


def compiled(add: float, capability: int) -> tuple[bytes, str, int]:
    """(cubin, symbol, dynamic shared bytes)."""
    follows = capability >= 90  # from there on a kernel may begin before the one ahead has ended
    constants = {"ADD": add, "SIZE": SIZE, "BLOCK": BLOCK, "PDL": follows}
    signature = {"x": "*fp32", "y": "*fp32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(turn_and_add, signature, constants, {})
    options = {"num_warps": WARPS, "enable_fp_fusion": False, "launch_pdl": follows}
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return built.asm["cubin"], built.metadata.name, built.metadata.shared


def program(kernels: tuple[Kernel, ...], nodes: int, kind: int) -> Program:
    """Launches that pass a vector to and fro between two halves of scratch, in a chain of edges of `kind`."""
    arity = len(kernels[0].param_sizes)
    launches, params, edges = np.zeros(nodes, LAUNCH), np.zeros(nodes * arity, PARAM), np.zeros(nodes - 1, EDGE)
    params["region"] = CONSTANT
    for i in range(nodes):
        launches[i] = (i % 2, i * arity, arity, 0, (BLOCKS, 1, 1), (32 * WARPS, 1, 1), kernels[i % 2].shared)
        source, target = (0, NBYTES) if i % 2 == 0 else (NBYTES, 0)
        params[i * arity], params[i * arity + 1] = (0, 64, source, NBYTES), (0, 64, target, NBYTES)
    edges["source"], edges["target"] = np.arange(nodes - 1), np.arange(1, nodes)
    edges["type"] = edges["from_port"] = kind
    return decode(encode(Program(kernels, (Region("scratch", 2 * NBYTES),), launches, params, edges)), "smoke")


class Case:
    """A context with two functions, a scratch region, a stream and pinned memory for one vector."""

    def __init__(self, stack: ExitStack, driver: Driver, device: int) -> None:
        self.driver, self.stack = driver, stack
        self.context = owned.context(stack, driver, device)
        self.capability = driver.capability(device)
        self.cubins: dict[str, bytes] = {}
        self.kernels = tuple(self._kernel(*compiled(add, self.capability)) for add in ADDED)
        self.base = owned.memory(stack, driver, 2 * NBYTES)
        self.host = owned.pinned(stack, driver, NBYTES)
        self.stream = owned.stream(stack, driver)

    def _kernel(self, cubin: bytes, symbol: str, shared: int) -> Kernel:
        name = hashlib.sha256(cubin).hexdigest()
        self.cubins[name] = cubin
        module = self.driver.module(cubin)
        sizes = self.driver.param_sizes(self.driver.function(module, symbol))
        self.driver.module_unload(module)
        return Kernel(name, symbol, sizes, shared)

    @contextmanager
    def modules(self, *programs: Program) -> Iterator[Modules]:
        made = Modules(self.driver, self.cubins.__getitem__, programs, self.capability)
        try:
            yield made
        finally:
            made.close()

    def result(self, executable: int, start: np.ndarray) -> np.ndarray:
        """What the graph makes of `start` fp32 [SIZE]."""
        vector = self.host.array.view(np.float32)
        vector[:] = start
        self.driver.to_device(self.base, self.host.address, NBYTES, self.stream)
        self.driver.launch(executable, self.stream)
        self.driver.to_host(self.host.address, self.base, NBYTES, self.stream)
        self.driver.synchronize(self.stream)
        return vector.copy()

    def graph_us(self, executable: int) -> float:
        """Microseconds of a launch on the device, the median of 20, by events."""
        start, end = self.driver.event(timing=True), self.driver.event(timing=True)
        taken = []
        for _ in range(25):
            self.driver.record(start, self.stream)
            self.driver.launch(executable, self.stream)
            self.driver.record(end, self.stream)
            self.driver.synchronize(self.stream)
            taken.append(1e3 * self.driver.elapsed_ms(start, end))
        for event in (start, end):
            self.driver.event_destroy(event)
        return median(taken[5:])
