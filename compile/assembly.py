"""Assembling a program: launches over operands, scratch planned by liveness, barriers only where data needs them.

Knows nothing of graphs or operators.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.artifacts.program import CONSTANT, LAUNCH, PARAM, Kernel, Program, Region
from tandem.kernels.signature import Signature

if TYPE_CHECKING:
    from tandem.kernels.cuda.launch import Work

ALIGNMENT = 64


@dataclass(eq=False, slots=True)
class Buffer:
    """A span of scratch that lives from its first launch to its last; `offset` is set by the planner."""

    nbytes: int
    offset: int = -1


Span = tuple[Buffer | str, int, int]
"""A buffer or region, the first byte, and the first byte behind."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor where it lies: `offset` bytes into a scratch buffer or into a region.

    `count` names the io count of its rows ("rows", "outputs" or "moves"), `stride` is in elements between rows,
    `shape` as traced, `dtype` one of fp32, bf16, int8, int4, int32, int64. `extent` bytes from `offset` on are what
    launches may touch. In more than one of its `parts` a row is [parts, *shape[1:]] in fp32, to be summed in order.
    """

    place: Buffer | str
    offset: int
    extent: int
    shape: tuple[int, ...] = ()
    stride: int = 0
    count: str = ""
    dtype: str = "fp32"
    parts: int = 1

    def span(self) -> Span:
        """What a launch may touch of it: a whole buffer, or `extent` bytes of a region."""
        if isinstance(self.place, Buffer):
            return self.place, 0, self.place.nbytes
        return self.place, self.offset, self.offset + self.extent


Argument = Operand | int | float | None
_POINTER = (Operand, type(None))
ACCEPTED: dict[str, Any] = {"in": _POINTER, "out": _POINTER, "both": _POINTER, "int": int, "real": float}
"""What each kind of parameter takes."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of `kernel` with all arguments of its signature, by name; on a GPU also the grid and what it does.

    Of a kernel that is yet to be compiled for what it does, `work` is not known.
    """

    kernel: str
    arguments: dict[str, Argument]
    signature: Signature
    work: Work | None = None

    def __post_init__(self) -> None:
        wanted = {param.name for param in self.signature}
        assert wanted == self.arguments.keys(), f"{self.kernel} takes {sorted(wanted)}, given {sorted(self.arguments)}"
        for param in self.signature:
            value = self.arguments[param.name]
            assert isinstance(value, ACCEPTED[param.kind]), f"{self.kernel}: {param.name} is no {value!r}"

    def values(self) -> list[Argument]:
        """The arguments in the signature's order."""
        return [self.arguments[param.name] for param in self.signature]

    def operands(self, *kinds: str) -> list[Operand]:
        """The tensors that parameters of these kinds are given."""
        given = (self.arguments[param.name] for param in self.signature if param.kind in kinds)
        return [value for value in given if isinstance(value, Operand)]

    def buffers(self) -> list[Buffer]:
        return [operand.place for operand in self.operands("in", "out", "both") if isinstance(operand.place, Buffer)]


class Assembly:
    """Collects launches in order; `program` lays them out. `signatures` are those of the kernel library."""

    def __init__(self, signatures: dict[str, Signature]) -> None:
        self._signatures = signatures
        self._launches: list[Launch] = []

    @property
    def launches(self) -> Sequence[Launch]:
        """All so far, in order."""
        return self._launches

    def launch(self, kernel: str, work: Work | None = None, /, **arguments: Argument) -> None:
        """Appends a call of `kernel` with its arguments by name, all of them."""
        self.append(self.made(kernel, work, **arguments))

    def append(self, launch: Launch) -> None:
        """Appends a call of a kernel that the library need not have."""
        self._launches.append(launch)

    def made(self, kernel: str, work: Work | None = None, /, **arguments: Argument) -> Launch:
        """A call that is not part of the program yet."""
        return Launch(kernel, arguments, self._signatures[kernel], work)

    def rewrite(self, rule: Callable[[Assembly, list[Launch]], list[Launch]]) -> None:
        """Replaces all launches so far by what `rule` makes of them."""
        self._launches = rule(self, self._launches)

    def program(self, binary: str, region_bytes: dict[str, int]) -> Program:
        """The finished program over kernels of `binary` (a sha256); scratch is added to `region_bytes`."""
        waits = self._waits()
        regions = {**region_bytes, "scratch": self.plan_scratch(waits)}
        names = sorted({launch.kernel for launch in self._launches})
        order = {name: i for i, name in enumerate(regions)}
        launches = np.zeros(len(self._launches), LAUNCH)
        params: list[tuple[int, int, int, int]] = []
        for i, (launch, wait) in enumerate(zip(self._launches, waits, strict=True)):
            called = launches[i]
            called["kernel"], called["first_param"] = names.index(launch.kernel), len(params)
            called["num_params"], called["wait"] = len(launch.signature), wait
            params += [encode_argument(value, order) for value in launch.values()]
        kernels = tuple(Kernel(binary, f"tdm_{name}", (8,) * len(self._signatures[name])) for name in names)
        sizes = tuple(Region(name, size, ALIGNMENT) for name, size in regions.items())
        return Program(kernels, sizes, launches, np.array(params, PARAM))

    def plan_scratch(self, waits: Sequence[bool]) -> int:
        """Gives every buffer its offset and returns the bytes in all: first fit in order of birth.

        A buffer's bytes are free again behind the first barrier after its last launch, so that no barrier is needed
        for the sake of memory alone.
        """
        stages = list(accumulate(waits))
        last: dict[Buffer, int] = {}
        for stage, launch in zip(stages, self._launches, strict=True):
            last.update((buffer, stage) for buffer in launch.buffers())
        alive: list[Buffer] = []
        top = 0
        for stage, launch in zip(stages, self._launches, strict=True):
            alive = [buffer for buffer in alive if last[buffer] >= stage]
            for buffer in launch.buffers():
                if buffer.offset < 0:
                    buffer.offset = _first_fit(alive, buffer.nbytes)
                    alive.append(buffer)
                    top = max(top, buffer.offset + buffer.nbytes)
        return top

    def _waits(self) -> list[bool]:
        """Whether a launch touches what an earlier one since the last barrier writes, or writes what it touches."""
        waits: list[bool] = []
        reads: list[Span] = []
        writes: list[Span] = []
        for launch in self._launches:
            mine_read = [operand.span() for operand in launch.operands("in", "both")]
            mine_write = [operand.span() for operand in launch.operands("out", "both")]
            wait = _overlap(mine_read, writes) or _overlap(mine_write, writes) or _overlap(mine_write, reads)
            if wait:
                reads, writes = [], []
            reads += mine_read
            writes += mine_write
            waits.append(wait)
        return waits


def _first_fit(alive: list[Buffer], nbytes: int) -> int:
    offset = 0
    for buffer in sorted(alive, key=lambda b: b.offset):
        if offset + nbytes <= buffer.offset:
            break
        offset = max(offset, -(-(buffer.offset + buffer.nbytes) // ALIGNMENT) * ALIGNMENT)
    return offset


def _overlap(some: list[Span], others: list[Span]) -> bool:
    return any(r == q and a < d and c < b for r, a, b in some for q, c, d in others)


def encode_argument(value: Argument, regions: dict[str, int]) -> tuple[int, int, int, int]:
    """A row of PARAM."""
    if isinstance(value, Operand):
        place, _, behind = value.span()
        base = place.offset if isinstance(place, Buffer) else 0
        offset = base + value.offset
        region = "scratch" if isinstance(place, Buffer) else place
        return regions[region], alignment(offset), offset, base + behind - offset
    word = struct.pack("<d", value) if isinstance(value, float) else struct.pack("<q", value or 0)
    return CONSTANT, 1, int.from_bytes(word, "little"), 0


def alignment(offset: int) -> int:
    """The largest power of two, 64 at most, that divides `offset`."""
    return min(ALIGNMENT, offset & -offset) if offset else ALIGNMENT
