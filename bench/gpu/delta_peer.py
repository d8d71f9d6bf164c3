"""The delta rule in closed form: what an exact recurrence is beside. Ours (`peers.closed_form`) is always there.

`pip install fla-core` brings the chunked kernels of flash-linear-attention, which know no trees; nothing of Tandem uses
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from bench.gpu.peers.closed_form import Rows, prompt_call, verify_call
from bench.gpu.timing import graph_us
from tandem.keys import MAX_TREE_ROWS

SHAPES = ((16, 4), (32, 4), (64, 4), (64, 8), (128, 8))
"""Columns of a head that a program takes, and its warps: the fastest counts."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Recurrent layers: how many, their key and value heads, and the widths of these."""

    layers: int
    key_heads: int
    heads: int
    dk: int
    dv: int


def own_us(heads: Heads, rows: int, parents: Sequence[int] = ()) -> float:
    """Microseconds a layer of our closed form: a prompt of `rows` rows or, of at most 32, a verify, with `parents` that
    of a tree. Everything but the states in fp32 is bf16.
    """
    states, given = drawn(heads, rows)
    y = torch.empty(rows, heads.heads, heads.dv, device="cuda")
    path = paths(parents or range(-1, rows - 1)).cuda() if rows <= MAX_TREE_ROWS else None

    def calls(columns: int, warps: int) -> list[Callable[[], object]]:
        if path is None:
            return [prompt_call(given, state, y, columns, warps) for state in states[:8]]
        return [verify_call(given, path, state, y, columns, warps) for state in states]

    taken = [math.inf]
    for shape in SHAPES:
        with suppress(OutOfResources):  # what one version of Triton fits into shared memory, another does not
            taken.append(us(calls(*shape)))
    return min(taken)


def fla_us(heads: Heads, rows: int) -> float:
    """Microseconds a layer of flash-linear-attention; 32 rows, a verify's, leave the state as it is. ImportError where
    it is not installed."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    states, given = drawn(heads, rows)
    inputs = [x[None] for x in (given.q, given.k, given.v, given.g, given.beta.bfloat16())]

    def over(state: Tensor) -> Callable[[], object]:
        keep = rows > MAX_TREE_ROWS
        return lambda: chunk_gated_delta_rule(*inputs, scale=1.0, initial_state=state[None], output_final_state=keep)

    with torch.no_grad():
        return us([over(state) for state in states])


def closed_us(heads: Heads, rows: int, parents: Sequence[int] = ()) -> Iterator[tuple[str, float | str]]:
    """Microseconds a layer by each of the two, or why one of them is not there."""
    for name, take in (("own", lambda: own_us(heads, rows, parents)), ("fla", lambda: fla_us(heads, rows))):
        try:
            yield name, take()
        except Exception as error:  # a peer of others' making: whatever it is, the other one counts
            yield name, f"{name} is not there: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def drawn(heads: Heads, rows: int) -> tuple[Tensor, Rows]:
    """States of all layers, which outgrow the cache, and one layer's rows: gates are computed, keys of length one."""
    torch.manual_seed(0)
    made, h = {"device": "cuda"}, heads
    states = torch.randn(h.layers, h.heads, h.dk, h.dv, **made) / h.dk**0.5
    q, k = (
        torch.nn.functional.normalize(torch.randn(rows, h.key_heads, h.dk, **made), dim=-1).bfloat16() for _ in range(2)
    )
    v, g = torch.randn(rows, h.heads, h.dv, **made).bfloat16(), -torch.rand(rows, h.heads, **made)
    return states, Rows(q * h.dk**-0.5, k, v, g, torch.rand(rows, h.heads, **made))


def paths(parents: Sequence[int]) -> Tensor:
    """int32 [rows]: the bits of each row's ancestors and its own."""
    bits: list[int] = []
    for row, above in enumerate(parents):
        bits.append(1 << row | (bits[above] if above >= 0 else 0))
    return torch.tensor([mask - (1 << 32) if mask >> 31 else mask for mask in bits], dtype=torch.int32)


def us(calls: Sequence[Callable[[], object]]) -> float:
    return graph_us(calls, repeats=5).median
