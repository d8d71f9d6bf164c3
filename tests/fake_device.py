"""The device behind `tests.fake_driver`: memory, streams that run late, graphs of nodes read from the driver's structs.

Knows nothing of calls or of who makes them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_uint8, c_uint32, c_uint64, string_at
from dataclasses import dataclass, field

import numpy as np

ALIGNMENT = 256
_HEADER = 64


def make_cubin(kernels: Mapping[str, Sequence[int]], capability: int = 90) -> bytes:
    """A cubin of `kernels`: parameter sizes by symbol. The header is an ELF's as ptxas writes it, the rest our own."""
    header = bytearray(_HEADER)
    header[:9] = b"\x7fELF\x02\x01\x01\x41\x08"
    header[18:20] = (190).to_bytes(2, "little")
    header[48:52] = (6 << 24 | capability << 8 | 4).to_bytes(4, "little")
    text = json.dumps({symbol: list(sizes) for symbol, sizes in kernels.items()}).encode()
    return bytes(header) + len(text).to_bytes(8, "little") + text


def read_cubin(address: int) -> tuple[int, dict[str, tuple[int, ...]]] | None:
    """(capability, parameter sizes by symbol), or None for what is none."""
    header = string_at(address, _HEADER)
    if header[:4] != b"\x7fELF":
        return None
    length = c_uint64.from_address(address + _HEADER).value
    kernels = json.loads(string_at(address + _HEADER + 8, length))
    return header[49], {symbol: tuple(sizes) for symbol, sizes in kernels.items()}


class Memory:
    """A block of host memory that stands for the device's, or for pinned memory."""

    def __init__(self, nbytes: int) -> None:
        self._block = np.full(nbytes + ALIGNMENT, 0xA5, np.uint8)  # never zeros by luck
        start = -self._block.ctypes.data % ALIGNMENT
        self.array = self._block[start : start + nbytes]
        self.address, self.nbytes = self.array.ctypes.data, nbytes

    def holds(self, address: int, nbytes: int) -> bool:
        return self.address <= address and address + nbytes <= self.address + self.nbytes


@dataclass
class Work:
    """Something queued; `touches` are the (address, bytes) it will use, a graph's handle and 0 for a launch."""

    do: Callable[[], object]
    touches: tuple[tuple[int, int], ...] = ()


@dataclass
class Stream:
    """Work in order, done when it is waited for."""

    queue: deque[Work] = field(default_factory=deque)
    queued: int = 0
    done: int = 0

    def put(self, work: Work) -> None:
        self.queue.append(work)
        self.queued += 1

    def drain(self, until: int | None = None) -> None:
        while self.queue and (until is None or self.done < until):
            self.queue.popleft().do()
            self.done += 1


@dataclass(frozen=True)
class Function:
    """A kernel of a loaded module, by the module's handle."""

    module: int
    symbol: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """A kernel node as the driver read it; `words` are the arguments' values."""

    function: Function
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    words: tuple[int, ...]


@dataclass
class Graph:
    """Nodes by handle and edges (source, target, data of 8 bytes)."""

    nodes: dict[int, Node] = field(default_factory=dict)
    edges: list[tuple[int, int, bytes]] = field(default_factory=list)

    @property
    def plain_edges(self) -> list[tuple[int, int, bytes]]:
        """The edges with places in `nodes` for handles."""
        place = {handle: i for i, handle in enumerate(self.nodes)}
        return [(place[source], place[target], data) for source, target, data in self.edges]


def read_node(address: int, functions: Mapping[int, Function]) -> Node | str:
    """The kernel node whose CUgraphNodeParams lies at `address`, by the offsets of cuda.h, or what is wrong with it."""
    struct = string_at(address, 256)
    numbers = [int.from_bytes(struct[i : i + 4], "little") for i in range(24, 52, 4)]
    handle = int.from_bytes(struct[16:24], "little")
    if handle not in functions:
        return f"node of an unknown function {handle:#x}"
    if any(struct[:16]) or any(struct[52:56]) or any(struct[64:]):
        return "node with something in its reserved bytes"
    function, words = functions[handle], []
    params = int.from_bytes(struct[56:64], "little")
    for i, size in enumerate(function.sizes):
        place = c_uint64.from_address(params + 8 * i).value
        words.append({1: c_uint8, 4: c_uint32, 8: c_uint64}[size].from_address(place).value)
    return Node(function, tuple(numbers[:3]), tuple(numbers[3:6]), numbers[6], tuple(words))
