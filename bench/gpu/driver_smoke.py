"""`python3 -m bench.gpu.driver_smoke`: whether `tandem.driver` and the CUDA executor's parts hold on this GPU.

Two small kernels are compiled, written down as a program of 450 launches with programmatic edges, rebuilt as a graph
and run; numbers are checked, refusals provoked, and the host's costs printed: a node, an instantiation, a graph, a
launch and its wait, weights from a file in memory. One line per check, `ok` or `FAILED` in front; exit status 1 if any
failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

from bench.gpu import driver_weights
from bench.gpu.driver_case import ADDED, SIZE, Case, compiled, program
from tandem.artifacts.program import FULL, PROGRAMMATIC, Kernel, Program
from tandem.driver import Driver
from tandem.errors import TandemError
from tandem.runtime.executor.cuda import graphs
from tandem.runtime.executor.cuda.modules import Modules, architecture

NODES = 450
BOUND = 0.7
"""Share of the plain pinned copies' rate that weights must reach for an `ok`."""

failures: list[str] = []


def say(held: bool, words: str) -> None:
    print("ok    " if held else "FAILED", words, flush=True)
    if not held:
        failures.append(words)


def run_graphs(case: Case) -> None:
    """Numbers, then what making and running a graph costs, with programmatic edges and with full ones."""
    bases = {"scratch": case.base}
    start = np.arange(SIZE, dtype=np.float32) % 1000
    for kind, name in ((PROGRAMMATIC, "programmatic"), (FULL, "full")):
        made = program(case.kernels, NODES, kind)
        with case.modules(made) as modules, ExitStack() as stack:
            began = time.perf_counter()
            functions = modules.functions(made)
            print(f"       {modules.loads} modules loaded in {1e3 * (time.perf_counter() - began):.2f} ms")
            executable = graphs.build(stack, case.driver, made, functions, bases, case.stream)
            wanted = start + NODES // 2 * sum(ADDED)
            held = all(np.array_equal(case.result(executable, start), wanted) for _ in range(20))
            say(held, f"{NODES} launches, {name} edges: 20 runs give the right numbers")
            free = case.driver.memory()[0]
            taken = [cost(case, made, functions, bases) for _ in range(20)]
            spent = (free - case.driver.memory()[0]) / len(taken)
            nodes, instantiate, whole = (median(column) for column in zip(*taken, strict=True))
            print(f"       {nodes:.2f} us a node, {instantiate:.3f} ms to instantiate, {whole:.3f} ms a graph")
            print(f"       {spent / 1e3:.0f} kB of device memory a graph left behind when it ended")
            on_device = case.graph_us(executable)
            print(f"       {on_device:.1f} us a run, {on_device / NODES:.2f} us a launch on the device, {name} edges")
            say(nodes < 3.0 and whole < 2.0, "under 3 us a node and 2 ms a graph")


def cost(case: Case, made: Program, functions: np.ndarray, bases: dict[str, int]) -> tuple[float, float, float]:
    """(us a node with the structs for it, ms to instantiate, ms for all of `graphs.build`)."""
    driver = case.driver
    began = time.perf_counter()
    nodes, edges = graphs.Nodes.of(made, functions, bases), graphs.Edges.of(made)
    graph = driver.graph()
    graphs._add(driver, graph, made, nodes, edges)
    added = time.perf_counter()
    executable = driver.instantiate(graph)
    instantiated = time.perf_counter()
    driver.executable_destroy(executable)
    driver.graph_destroy(graph)
    with ExitStack() as stack:
        again = time.perf_counter()
        graphs.build(stack, driver, made, functions, bases, case.stream)
        whole = time.perf_counter() - again
    return 1e6 * (added - began) / NODES, 1e3 * (instantiated - added), 1e3 * whole


def round_gap(case: Case) -> None:
    """A pass as the executor makes it, around a graph of one small kernel: what is not the kernel is the host's."""
    made = program(case.kernels, 2, PROGRAMMATIC)
    driver, stream, host = case.driver, case.stream, case.host.address
    with case.modules(made) as modules, ExitStack() as stack:
        bases = {"scratch": case.base}
        executable = graphs.build(stack, driver, made, modules.functions(made), bases, stream)
        on_device = case.graph_us(executable)
        for copies in (False, True):
            taken = []
            for _ in range(2000):
                began = time.perf_counter()
                if copies:
                    driver.to_device(case.base, host, 16384, stream)
                driver.launch(executable, stream)
                if copies:
                    driver.to_host(host, case.base, 512, stream)
                driver.synchronize(stream)
                taken.append(1e6 * (time.perf_counter() - began))
            what = "copy in, launch, copy back, wait" if copies else "launch, wait"
            print(f"       {what}: {median(taken):.1f} us, of which the graph {on_device:.1f} us")


def provoked(name: str, act: Callable[[], object]) -> None:
    try:
        act()
    except TandemError as error:
        say(True, f"{name}: {type(error).__name__}: {error}")
    else:
        say(False, f"{name} was not refused")


def refusals(case: Case) -> None:
    """Each must be an error in words, and the GPU must work after it."""
    kernel = case.kernels[0]

    def load(cubin: bytes, changed: Kernel = kernel) -> None:
        two = program((changed, changed), 2, PROGRAMMATIC)
        modules = Modules(case.driver, lambda sha256: cubin, [two], case.capability)
        try:
            modules.functions(two)
        finally:
            modules.close()

    cubin = case.cubins[kernel.binary]
    say(architecture(cubin) == case.capability, f"a cubin's header names {architecture(cubin)}")
    older = compiled(ADDED[0], 80)[0]
    say(architecture(older) == 80, f"another cubin's header names {architecture(older)}")
    provoked("a cubin for 8.0", lambda: load(older))
    provoked("a cubin cut in half", lambda: load(cubin[: len(cubin) // 2] + bytes(len(cubin))))
    provoked("a cubin without its first byte", lambda: load(b"\0" + cubin[1:]))
    changed = Kernel(kernel.binary, "absent", kernel.param_sizes, kernel.shared)
    provoked("an absent symbol", lambda: load(cubin, changed))
    sizes = (*kernel.param_sizes, 8)
    provoked("an argument too many", lambda: load(cubin, Kernel(kernel.binary, kernel.symbol, sizes, kernel.shared)))
    provoked("too much memory", lambda: case.driver.alloc(1 << 50))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=int, default=4, help="of the file of weights")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where it is written")
    options = parser.parse_args()
    began = time.perf_counter()
    driver = Driver()
    device = driver.device(0)
    with ExitStack() as stack:
        case = Case(stack, driver, device)
        print(f"{driver.device_name(device)}, capability {case.capability}, CUDA {driver.version()}")
        print(f"       kernels take {case.kernels[0].param_sizes} bytes; up after {time.perf_counter() - began:.1f} s")
        run_graphs(case)
        round_gap(case)
        refusals(case)
        share, arrived = driver_weights.measure(case, options.gigabytes << 30, options.folder)
        say(share > BOUND, f"weights at {share:.2f} of the plain rate")
        say(arrived, "every 61st page of the weights is what the file holds")
    print(f"{len(failures)} failed, {time.perf_counter() - began:.1f} s")
    return min(1, len(failures))


if __name__ == "__main__":
    sys.exit(main())
