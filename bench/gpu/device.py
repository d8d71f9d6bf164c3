"""Graphs of an opened CUDA bundle, timed by events: as they were restored, captured anew, or some of their launches.

Reaches into the executor on purpose: these figures are about what lies inside it. Imports no framework.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from spread import Spread
from tandem.artifacts.program import EDGE, Kernel, Program
from tandem.errors import DeviceError
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.graphs import Nodes, build

PROGRAMMATIC = 1
RELAXED = 2
PROGRAMMATIC_SERIALIZATION = 6
"""The attribute that lets a launch begin before the one ahead of it in the stream has ended."""
ENOUGH_MS = 25.0
"""Time of the launches between two events: an event's own cost is a microsecond or two."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; of its value, 64 bytes, the first int alone is used."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Device:
    """Times graphs in the memory of `executor`; whoever calls has run the pass whose rows the graphs shall read."""

    def __init__(self, executor: CudaExecutor) -> None:
        self._executor, self._driver = executor, executor._driver
        self._stream, self._bases = executor._passes.stream, executor._bases
        self._driver.set_current(executor._context)

    def graph_ms(self, kind: Kind, length: int, rows: int, repeats: int = 9) -> Spread:
        """Milliseconds of the restored graph that a pass of `rows` rows up to position `length` - 1 takes."""
        return self.ms(self._executor._shelf.graph(kind, rows, length), repeats)

    def program(self, kind: Kind, length: int, rows: int) -> Program:
        return self._executor._shelf._program(kind, rows, length)

    def ms(self, graph: int, repeats: int = 9) -> Spread:
        """Milliseconds of one launch of an executable graph, many in a row between two events, `repeats` times."""
        self._between(graph, 3)
        count = max(3, int(ENOUGH_MS / max(self._between(graph, 3), 1e-3)))
        return Spread.of([self._between(graph, count) for _ in range(repeats)])

    def interleaved_ms(self, graphs: dict[str, int], repeats: int) -> dict[str, Spread]:
        """`ms` of several, turn by turn."""
        taken: dict[str, list[float]] = {name: [] for name in graphs}
        for turn in range(repeats + 1):
            for name, graph in graphs.items():
                (ms,) = self.ms(graph, 1).runs
                if turn:
                    taken[name].append(ms)
        return {name: Spread.of(runs) for name, runs in taken.items()}

    @contextmanager
    def restored(self, program: Program) -> Iterator[int]:
        """An executable graph built node by node, as serving does."""
        functions = self._functions(program)
        with ExitStack() as stack:
            yield build(stack, self._driver, program, functions, self._bases, self._stream)
            self._driver.synchronize(self._stream)

    @contextmanager
    def captured(self, program: Program) -> Iterator[int]:
        """An executable graph of the same launches, as a stream captures them."""
        graph = self._capture(program)
        try:
            self._driver.upload(graph, self._stream)
            yield graph
        finally:
            self._driver.synchronize(self._stream)
            self._driver.executable_destroy(graph)

    def _functions(self, program: Program) -> np.ndarray:
        return self._executor._modules.functions(program)

    def _between(self, graph: int, count: int) -> float:
        driver, stream = self._driver, self._stream
        start, end = driver.event(timing=True), driver.event(timing=True)
        driver.record(start, stream)
        for _ in range(count):
            driver.launch(graph, stream)
        driver.record(end, stream)
        driver.wait(end)
        ms = driver.elapsed_ms(start, end) / count
        driver.event_destroy(start)
        driver.event_destroy(end)
        return ms

    def _capture(self, program: Program) -> int:
        nodes = Nodes.of(program, self._functions(program), self._bases)
        early = set(program.edges["target"][program.edges["type"] == PROGRAMMATIC].tolist())
        stream, made = self._driver.stream(), ctypes.c_void_p()
        try:
            _call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(RELAXED))
            for index, node in enumerate(nodes.structs):
                _launch(node, stream, early=index in early)
            _call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(made))
            assert made.value is not None
            try:
                return self._driver.instantiate(made.value)
            finally:
                self._driver.graph_destroy(made.value)
        finally:
            self._driver.stream_destroy(stream)


def some(program: Program, wanted: Callable[[Kernel], bool]) -> Program:
    """The launches whose kernel is `wanted`, one behind the other as programs have them."""
    named = np.array([wanted(kernel) for kernel in program.kernels])
    launches = program.launches[named[program.launches["kernel"]]]
    edges = np.zeros(max(0, len(launches) - 1), EDGE)
    edges["source"], edges["target"] = np.arange(len(edges)), np.arange(1, len(edges) + 1)
    edges["from_port"] = edges["type"] = PROGRAMMATIC
    return replace(program, launches=launches, edges=edges)


def _launch(node: Any, stream: int, *, early: bool) -> None:
    attribute = LaunchAttribute(PROGRAMMATIC_SERIALIZATION, 0, 1)
    config = LaunchConfig(
        tuple(node["grid"].tolist()),
        tuple(node["block"].tolist()),
        int(node["shared"]),
        stream,
        ctypes.pointer(attribute),
        int(early),
    )
    function, params = ctypes.c_void_p(int(node["function"])), ctypes.c_void_p(int(node["params"]))
    _call("cuLaunchKernelEx", ctypes.byref(config), function, params, None)


def _call(name: str, *arguments: object) -> None:
    """A call of libcuda that the runtime never makes."""
    if code := getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments):
        raise DeviceError(f"{name} answered {code}", call=name, code=code)
