"""What a Triton kernel is to whoever launches it: its pointers, and the work that a grid of it does.

Everything but pointers is a compile-time constant, so a launch's arguments are addresses alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandem.kernels.cuda.ptx import ask_for_whole_lines
from tandem.kernels.signature import Signature, parse

ask_for_whole_lines()
Constant = int | float | bool


@dataclass(frozen=True, slots=True)
class Work:
    """How a kernel is launched. `constants` are its upper-case parameters by name, PDL excepted."""

    grid: tuple[int, int, int]
    constants: tuple[tuple[str, Constant], ...]
    num_warps: int = 4
    num_stages: int = 3


def work(grid: tuple[int, ...], *, num_warps: int = 4, num_stages: int = 3, **constants: Constant) -> Work:
    """A `Work` of a grid of one to three dimensions; constants in an order of their own."""
    x, y, z = (*grid, 1, 1)[:3]
    return Work((x, y, z), tuple(sorted(constants.items())), num_warps, num_stages)


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A jitted function whose first parameters are the pointers of `signature`, in order."""

    name: str
    function: Any
    signature: Signature


def kernel(signature: str) -> Callable[[Any], TritonKernel]:
    """Names a `triton.jit` function's pointers: `<x` is read, `>y` written, `!cache` both."""

    def declare(function: Any) -> TritonKernel:
        return TritonKernel(function.__name__, function, parse(signature))

    return declare
